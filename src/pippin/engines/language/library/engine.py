"""The engine of models that mlx-vlm's loops run: a queue, and one request at a time.

The loop runs on a thread of its own (`engines/blocking.py`), which also reads the tokens; the engine's next step
returns their events. A request that is cancelled or fails leaves the loop before its next pass through the model.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import mlx.core as mx

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.events import Event, Failed, Progress, PromptEcho, merged
from pippin.core.models import EngineStats
from pippin.core.requests import AskedDiffusion, Sampling
from pippin.engines.base import Emission
from pippin.engines.blocking import BlockingEngine, BlockingJob, Call
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.prompt.loops import Loop
from pippin.engines.language.sampling.sampler import choice_seed
from pippin.engines.language.step.changes import changed
from pippin.engines.language.step.decoder import SequenceDecoder
from pippin.engines.language.step.sequences import Request
from pippin.engines.language.step.sequences import Sequence as Choice
from pippin.engines.language.step.statistics import request_status
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.language.vision.media import WholePrompt, text_prompt


@dataclass(frozen=True, kw_only=True)
class Writing:
    """The inputs of one answer."""

    prompt: WholePrompt
    max_tokens: int
    ends: frozenset[int]  # tokens that end the answer
    seed: int
    sampling: Sampling
    settings: AskedDiffusion


class Writer(Protocol):
    """A loaded model, and the loop of mlx-vlm that writes with it."""

    def write(
        self, writing: Writing, tell: Callable[[Sequence[int]], bool], check: Callable[[], None]
    ) -> None:
        """Write an answer. `tell` takes tokens as they are written, and returns whether to go on; `check` may raise,
        and is called at each pass through the model."""
        ...


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Bytes that bound the length of a request."""

    weights: int
    token: int  # of the KV cache, with its copies
    scores: int = 0  # besides, for each pair of prompt tokens
    memory: int  # that the weights leave

    def most_tokens(self, prompt: int) -> int:
        """The most tokens of prompt and answer together, for a prompt of `prompt` tokens."""
        return max(self.memory - self.scores * prompt * prompt, 0) // max(self.token, 1)


class LibraryEngine:
    """Answers requests one at a time; of those that wait, the most urgent first."""

    def __init__(
        self,
        calls: BlockingEngine[Writer],
        tokenizer: Tokenizer,
        options: ModelOptions,
        sizes: Sizes,
        loop: Loop,
    ) -> None:
        """`calls` has the model, and `loop` says what of a request its loop follows."""
        self._calls = calls
        self._tokenizer = tokenizer
        self._options = options
        self._sizes = sizes
        self._loop = loop
        self._waiting: list[Request] = []  # in the order of their arrival
        self._served = ""  # the account of the last request
        self._running: Request | None = None
        self._events: list[Emission] = []
        self._steps = 0
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._prompts_with_media = 0

    def submit(self, job: LanguageJob) -> None:
        if job.branches:
            message = "The loop of this model's library scores no labels, so it decides nothing: name another model."
            raise ServerError("unsupported", message, "model")
        self._loop.check(job.request, self._options, has_media=job.media is not None)
        job = self._fitted(job)
        if len(self._waiting) >= self._options.queue_size:
            raise ServerError(
                "overloaded",
                f"{len(self._waiting)} requests are waiting, which is as many as the queue holds: try again later.",
                retry_after=10.0,
            )
        request = Request(job=job)
        for index in range(job.request.n):
            decoder = SequenceDecoder(job, index, self._tokenizer)
            request.sequences.append(
                Choice(request=request, choice=index, decoder=decoder, tokens=list(job.prompt))
            )
        self._waiting.append(request)

    def _fitted(self, job: LanguageJob) -> LanguageJob:
        """The job, with an answer no longer than memory allows. Raises `ServerError` for a job that can never run."""
        if not job.prompt:
            raise ServerError("invalid_request", "The prompt is empty: send at least one token.", "messages")
        prompt = len(job.prompt)
        room = self._sizes.most_tokens(prompt) - prompt
        if room < min(1, job.max_tokens):
            raise ServerError(
                "context_length_exceeded",
                f"The prompt of {prompt} tokens does not fit in the {self._sizes.memory / 2**20:.1f} MiB of memory "
                "beside the weights: shorten it.",
            )
        return replace(job, max_tokens=min(job.max_tokens, room))

    def cancel(self, id: str) -> None:
        self._waiting = [each for each in self._waiting if each.job.id != id]
        self._calls.cancel(id)
        if self._running is not None and self._running.job.id == id:
            self._running = None
        self._events = [(owner, event) for owner, event in self._events if owner != id]

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._events or self._calls.busy)

    def step(self) -> list[Emission]:
        """Begin the next request if none runs, and return the events of the one that runs."""
        self._steps += 1
        self._expire(time.monotonic())
        if not self._calls.busy and self._waiting:
            self._begin()
        if self._calls.busy:
            self._events += self._calls.step()
            if not self._calls.busy:
                self._running = None
        taken, self._events = self._events, []
        return taken

    def _begin(self) -> None:
        request = max(self._waiting, key=self._urgency)
        self._waiting.remove(request)
        self._served = request.job.request.account
        request.admitted = time.monotonic()
        self._running = request
        run = partial(self._answer, request)
        self._calls.submit(BlockingJob(request.job.id, request.job.accepted, run))

    def _urgency(self, waiting: Request) -> tuple[int, bool]:
        """Priority, and then whether the account is another than that of the last request."""
        request = waiting.job.request
        return request.priority, request.account != self._served

    def _expire(self, now: float) -> None:
        """End requests that exceed their own timeout, and those that have waited in the queue for too long."""
        running = [] if self._running is None else [self._running]
        for request in (*self._waiting, *running):
            if (report := request.overdue(now, self._options.queue_timeout)) is not None:
                self.cancel(request.job.id)
                self._events.append((request.job.id, Failed(report)))

    # On the model's thread

    def _answer(self, request: Request, model: Writer, call: Call) -> None:
        """Write all choices of a request, one after the other."""
        for choice in list(request.sequences):
            if choice.decoder.finished is None:
                self._write(choice, model, call)
            self._tell_prompt(request, call)  # if only the prompt was asked for
            call.emit(choice.finished(choice.decoder.finished or "length"))

    def _write(self, choice: Choice, model: Writer, call: Call) -> None:
        request, decoder = choice.request, choice.decoder
        job = request.job
        writing = Writing(
            prompt=job.media or text_prompt(job.prompt),  # type: ignore[arg-type]
            max_tokens=job.max_tokens,
            ends=job.eos,
            seed=choice_seed(job.seed, choice.choice),
            sampling=job.request.sampling,
            settings=job.request.diffusion,
        )

        def tell(tokens: Sequence[int]) -> bool:
            self._tell_prompt(request, call)
            events: list[Event] = []
            for token in tokens:
                if decoder.finished is not None:
                    break
                self._completion_tokens += 1
                events += decoder.accept(token)
            for event in merged(events):
                call.emit(event)
            return decoder.finished is None

        model.write(writing, tell, call.check)
        if decoder.finished is None:
            decoder.cut()
        for event in decoder.close(decoder.finished or "length"):
            call.emit(event)

    def _tell_prompt(self, request: Request, call: Call) -> None:
        """Report the prompt once, with the first tokens: a loop does not tell when the prompt is computed."""
        if request.prefilled is not None:
            return
        now, job = time.monotonic(), request.job
        request.prefilled = request.first_token = now
        self._prompt_tokens += len(job.prompt)
        self._prompts_with_media += job.media is not None
        began = job.created if request.admitted is None else request.admitted
        call.emit(Progress(len(job.prompt), len(job.prompt), 0, now - began))
        if job.request.echo:
            call.emit(PromptEcho(job.prompt_text))

    # What the pool asks

    def stats(self) -> EngineStats:
        now = time.monotonic()
        live = ([] if self._running is None else [self._running]) + self._waiting
        return EngineStats(
            running=0 if self._running is None else 1,
            waiting=len(self._waiting),
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            media_encoded=self._prompts_with_media,
            batch_size=0 if self._running is None else 1,
            kv_limit_bytes=self._sizes.memory,
            longest_sequence=self._sizes.most_tokens(0),
            weight_bytes=self._sizes.weights,
            active_bytes=mx.get_active_memory(),
            peak_bytes=mx.get_peak_memory(),
            cached_bytes=mx.get_cache_memory(),
            requests=tuple(request_status(request, now) for request in live),
        )

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        if not prefixes_only:
            mx.clear_cache()

    def reconfigure(self, options: dict[str, Any]) -> None:
        merged = changed(self._options, options)
        if merged.memory_bytes is not None and "memory_bytes" in options:
            left = max(merged.memory_bytes - self._sizes.weights, 0)
            self._sizes = replace(self._sizes, memory=left)
        self._options = merged

    def close(self) -> None:
        self._waiting.clear()
        self._calls.close()

"""The engine of models that mlx-vlm's `generate` runs: a queue, and one request at a time.

The loop runs on a thread of its own (`engines/blocking.py`), which also reads the tokens; the engine's next step
returns their events. A request that is cancelled or fails leaves the loop before its next pass through the model.
"""

import logging
import time
from contextlib import closing
from functools import partial
from typing import Any

import mlx.core as mx
from msgspec.structs import replace

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.events import Failed, Progress, PromptEcho
from pippin.core.link import merged
from pippin.core.models import EngineStats
from pippin.engines.base import Emission, queue_is_full
from pippin.engines.blocking import BlockingEngine, BlockingJob, Call
from pippin.engines.device import DevicePlan, weights_too_large
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.library import fields
from pippin.engines.language.library.autoregressive import AutoregressiveModel
from pippin.engines.language.model.weights import weight_bytes
from pippin.engines.language.prompt.preparer import LanguagePreparer
from pippin.engines.language.sampling.sampler import choice_seed
from pippin.engines.language.step.decoder import SequenceDecoder
from pippin.engines.language.step.engine import changed, request_status
from pippin.engines.language.step.sequences import Request
from pippin.engines.language.step.sequences import Sequence as Choice
from pippin.engines.refusals import refuse_set

log = logging.getLogger(__name__)


class LibraryEngine:
    """Answers requests one at a time; of those that wait, the most urgent first."""

    def __init__(
        self, model: AutoregressiveModel, preparer: LanguagePreparer, options: ModelOptions, plan: DevicePlan
    ) -> None:
        """The engine of a model that was loaded on this thread. Raises `ServerError("load_failed")`."""
        refuse_set(options, fields.WITHOUT, f"with {fields.MODEL}, in mlx-vlm's own loop")
        log.warning(
            "the model answers one request at a time, by mlx-vlm's own generate, and caches no prompts"
        )
        self._needs_media = not model.computes_text()
        self._weights = weight_bytes(model.inner)
        if self._weights >= plan.memory_limit:
            raise weights_too_large(self._weights, plan.memory_limit, preparer.info.id)
        self._most_memory = plan.most_memory
        self._memory = plan.memory_limit - self._weights  # bytes for the KV cache
        self._token_bytes = model.token_bytes()  # of the KV cache
        model.settle()
        for name in fields.ignored(options, preparer.tokenizer.asked):
            log.warning("the default %s changes nothing, for the model's loop does not follow it", name)
        self._calls = BlockingEngine(lambda: model)
        self._tokenizer = preparer.tokenizer
        self._options = options
        self._waiting: list[Request] = []  # in the order of their arrival
        self._served = ""  # the account of the last request
        self._running: list[Request] = []  # one at most
        self._events: list[Emission] = []
        self._steps = 0
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._prompts_with_media = 0

    @property
    def _most_tokens(self) -> int:
        """The most tokens of prompt and answer together."""
        return self._memory // max(self._token_bytes, 1)

    def submit(self, job: LanguageJob) -> None:
        if job.branches:
            message = "The loop of this model's library scores no labels, so it decides nothing: name another model."
            raise ServerError("unsupported", message, "model")
        if self._needs_media and job.media is None:
            message = "This model reads pictures and takes no request without one: add one to a message of the user."
            raise ServerError("unsupported", message, "messages" if job.request.prompt is None else "prompt")
        fields.check(job.request, self._options, self._tokenizer)
        job = self._fitted(job)
        if len(self._waiting) >= self._options.queue_size:
            raise queue_is_full(len(self._waiting), 10.0)
        request = Request(job=job)
        for index in range(job.request.n):
            decoder = SequenceDecoder(job, index, self._tokenizer)
            request.sequences.append(
                Choice(request=request, choice=index, decoder=decoder, tokens=list(job.prompt))
            )
        self._waiting.append(request)

    def _fitted(self, job: LanguageJob) -> LanguageJob:
        """The job, with an answer no longer than memory allows. Raises `ServerError` for a job that can never run."""
        prompt = len(job.prompt)
        room = self._most_tokens - prompt
        if room < min(1, job.max_tokens):
            raise ServerError(
                "context_length_exceeded",
                f"The prompt of {prompt} tokens does not fit in the {self._memory / 2**20:.1f} MiB of memory "
                "beside the weights: shorten it.",
            )
        return replace(job, max_tokens=min(job.max_tokens, room))

    def cancel(self, id: str) -> None:
        self._waiting = [each for each in self._waiting if each.job.id != id]
        self._calls.cancel(id)
        self._running = [each for each in self._running if each.job.id != id]
        self._events = [(owner, event) for owner, event in self._events if owner != id]

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._events or self._calls.busy)

    def step(self) -> list[Emission]:
        """Begin the next request if none runs, and return the events of the one that runs."""
        self._steps += 1
        # Requests that exceed their own timeout end, and those that have waited in the queue for too long.
        for request in (*self._waiting, *self._running):
            if (report := request.overdue(time.monotonic(), self._options.queue_timeout)) is not None:
                self.cancel(request.job.id)
                self._events.append((request.job.id, Failed(report)))
        if not self._calls.busy and self._waiting:
            self._begin()
        if self._calls.busy:
            self._events += self._calls.step()
            if not self._calls.busy:
                self._running.clear()
        taken, self._events = self._events, []
        return taken

    def _begin(self) -> None:
        def urgency(waiting: Request) -> tuple[int, bool]:
            """Priority, and then whether the account is another than that of the last request."""
            return waiting.job.request.priority, waiting.job.request.account != self._served

        request = max(self._waiting, key=urgency)
        self._waiting.remove(request)
        self._served = request.job.request.account
        request.admitted = time.monotonic()
        self._running = [request]
        run = partial(self._answer, request)
        self._calls.submit(BlockingJob(request.job.id, request.job.accepted, run))

    # On the model's thread

    def _answer(self, request: Request, model: AutoregressiveModel, call: Call) -> None:
        """Write all choices of a request, one after the other."""
        for choice in list(request.sequences):
            if choice.decoder.finished is None:
                self._write(choice, model, call)
            self._tell_prompt(request, call)  # if only the prompt was asked for
            call.emit(choice.finished(choice.decoder.finished or "length"))

    def _write(self, choice: Choice, model: AutoregressiveModel, call: Call) -> None:
        request, decoder = choice.request, choice.decoder
        with closing(model.tokens(request.job, choice_seed(request.job.seed, choice.choice))) as tokens:
            for token in tokens:
                call.check()
                self._tell_prompt(request, call)
                self._completion_tokens += 1
                for event in merged(decoder.accept(token)):
                    call.emit(event)
                if decoder.finished is not None:
                    break
        if decoder.finished is None:
            decoder.finished = "length"
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
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            media_encoded=self._prompts_with_media,
            batch_size=len(self._running),
            kv_limit_bytes=self._memory,
            longest_sequence=self._most_tokens,
            weight_bytes=self._weights,
            active_bytes=mx.get_active_memory(),
            peak_bytes=mx.get_peak_memory(),
            cached_bytes=mx.get_cache_memory(),
            requests=tuple(request_status(request, now) for request in self._running + self._waiting),
        )

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        if not prefixes_only:
            mx.clear_cache()

    def reconfigure(self, options: dict[str, Any]) -> None:
        merged = changed(self._options, options)
        if merged.memory_bytes is not None and "memory_bytes" in options:
            self._memory = max(min(merged.memory_bytes, self._most_memory) - self._weights, 0)
        self._options = merged

    def close(self) -> None:
        self._waiting.clear()
        self._calls.close()

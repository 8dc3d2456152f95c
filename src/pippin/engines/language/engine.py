"""The language engine: jobs in, events out, one step at a time."""

import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec

from pippin.config.model_options import ModelOptions
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import Event, Failed, Progress, PromptEcho
from pippin.core.models import CacheStats, EngineStats
from pippin.engines.base import Emission
from pippin.engines.language.batch import Batch
from pippin.engines.language.engine_stats import Counters, engine_stats
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.prefill import compute_chunk, score_chunk
from pippin.engines.language.prefix_cache import PrefixCache
from pippin.engines.language.row_caches import new_row_cache
from pippin.engines.language.row_decoder import RowDecoder
from pippin.engines.language.row_group import RowGroup
from pippin.engines.language.rows import Prompt, Request, Row
from pippin.engines.language.sampling import Choice
from pippin.engines.language.scheduler import Limits, Scheduler, Ticket
from pippin.engines.language.tokenizer import Tokenizer

DISK_PAUSE = 0.001  # seconds between looks at blocks under way from the disk
CHANGEABLE = {"target_gap_ms", "queue_timeout", "queue_size", "stream_interval"}


class LanguageEngine:
    """Continuous batching over one model. All on the thread that loaded the weights."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        *,
        options: ModelOptions,
        limits: Limits,
        new_group: Callable[[], RowGroup],
        vocabulary: int,
        prefixes: PrefixCache | None = None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._options = options
        self._scheduler = Scheduler(limits)
        self._batch = Batch(new_group, tokenizer, vocabulary)
        self._prefixes = prefixes
        self._requests: dict[str, Request] = {}
        self._prompts: dict[Ticket, Prompt] = {}
        self._arrivals = 0
        self._out: list[Emission] = []
        self.counters = Counters()

    def submit(self, job: LanguageJob) -> None:
        if not job.prompt:
            raise ServerError("invalid_request", "The prompt is empty: send at least one token.", "messages")
        request = Request(job=job)
        self._arrivals += 1
        ticket = Ticket(
            id=job.id,
            priority=job.request.priority,
            arrival=self._arrivals,
            length=len(job.prompt) - 1,
            growth=job.max_tokens,
            rows=job.choices,
        )
        self._scheduler.add(ticket)
        for choice in range(job.choices):
            decoder = RowDecoder(job, choice, self._tokenizer)
            row = Row(request=request, choice=choice, decoder=decoder, tokens=list(job.prompt), ticket=ticket)
            request.rows.append(row)
        self._requests[job.id] = request
        self._await_prompt(
            Prompt(request=request, rows=list(request.rows), tokens=job.prompt[:-1], ticket=ticket)
        )

    def _await_prompt(self, prompt: Prompt) -> None:
        prompt.request.prompts.append(prompt)
        self._prompts[prompt.ticket] = prompt

    def cancel(self, id: str) -> None:
        request = self._requests.pop(id, None)
        if request is None:
            return
        for prompt in request.prompts:
            del self._prompts[prompt.ticket]
        self._batch.leave([row for row in request.rows if row in self._batch.rows])
        self._scheduler.drop(ticket for ticket in self._scheduler.tickets if ticket.id == id)
        self._out = [(owner, event) for owner, event in self._out if owner != id]

    @property
    def busy(self) -> bool:
        return bool(self._requests) or bool(self._out)

    def step(self) -> list[Emission]:
        started = time.monotonic()
        self.counters.steps += 1
        self._expire(started)
        self._admit(started)
        decoding = bool(self._batch.rows)
        if decoding:
            self._batch.forward()
        for row, choice in self._batch.read():
            self._accept(row, choice)
        if self._batch.rows and decoding:
            self._batch.sample()
            self._keep_states()
        tokens = self._compute_prompts(wait=not decoding)
        if self._prefixes is not None:
            self._prefixes.write_some()
        if not decoding and not tokens and not self._out:
            time.sleep(DISK_PAUSE)  # all that there is to do waits for the disk
        self._preempt()
        seconds = time.monotonic() - started
        # A chunk that the device works on beside the host shows in the step after it.
        self._scheduler.observe(seconds, tokens if not decoding else self.counters.chunk_under_way, decoding)
        self.counters.step_done(seconds, tokens, decoding)
        sent, self._out = self._out, []
        return sent

    def _emit(self, request: Request, events: list[Event]) -> None:
        self._out.extend((request.job.id, event) for event in events)

    def _expire(self, now: float) -> None:
        for request in list(self._requests.values()):
            waited = now - request.job.created
            limit, patience = request.job.request.timeout, self._options.queue_timeout
            if limit is not None and waited > limit:
                message = f"The request took longer than its timeout of {limit:g} seconds."
                self._fail(request, ErrorReport(kind="timeout", message=message, param="timeout"))
            elif patience is not None and request.admitted is None and waited > patience:
                message = (
                    f"The request waited longer than {patience:g} seconds in the queue: try again later."
                )
                self._fail(request, ErrorReport(kind="overloaded", message=message, retry_after=1.0))

    def _fail(self, request: Request, report: ErrorReport) -> None:
        self.cancel(request.job.id)
        self._emit(request, [Failed(report)])

    def _admit(self, now: float) -> None:
        for ticket in self._scheduler.admit():
            request = self._prompts[ticket].request
            if request.admitted is None:
                request.admitted = now

    def _compute_prompts(self, *, wait: bool) -> int:
        """Work on prompts for as many tokens as this step may; gives how many it was."""
        budget = self._scheduler.chunk()
        spent = 0
        for waiting in self._prompts:
            waiting.held = False
        while (ticket := self._scheduler.next_prompt()) is not None:
            prompt = self._prompts[ticket]
            if not prompt.begun and not self._begin(prompt):
                continue
            count = min(budget - spent, ticket.remaining)
            if ticket.remaining and count <= 0:
                break
            if count:
                ahead = [border - ticket.computed for border in prompt.borders if border > ticket.computed]
                count = min(count, *ahead, count)
                self._compute(prompt, count, wait)
                spent += count
            if not ticket.remaining:
                self._start_rows(prompt)
        return spent

    def _begin(self, prompt: Prompt) -> bool:
        """Start from what the prefix cache has; False if the prompt had better wait for one that is under way."""
        request, ticket = prompt.request, prompt.ticket
        if self._prefixes is not None and not (request.scores_prompt and request.computed is None):
            ahead = [
                other
                for other in self._prompts.values()
                if (other.begun or other.loading) and other.ticket.priority >= ticket.priority
            ]
            if self._prefixes.leader(prompt, ahead) is not None or not self._prefixes.fetched(prompt):
                ticket.held = True
                return False
            ticket.computed = self._prefixes.begin(prompt)
            if request.computed is None:
                request.cached = ticket.computed
        prompt.begun = True
        return True

    def _keep_prompt(self, prompt: Prompt) -> None:
        """Remember what is computed of a prompt, for others to start from."""
        if self._prefixes is None or prompt.cache is None:
            return
        request, done = prompt.request, prompt.ticket.computed
        stored = self._prefixes.keep(request.job.key, prompt.tokens[:done], prompt.cache, request.job.pins)
        if request.computed is None:
            request.stored += stored

    def _keep_row(self, row: Row) -> None:
        """Remember a row that leaves: a conversation goes on from its end."""
        if self._prefixes is None:
            return
        size = self._prefixes.tree.block_tokens
        stop = self._batch.length(row) // size * size
        if self._prefixes.has_state:
            stop = self._batch.length(row) if stop == self._batch.length(row) else 0
        if stop:
            self._prefixes.keep(row.request.job.key, row.tokens[:stop], self._batch.view(row, stop))

    def _keep_states(self) -> None:
        """Recurrent state cannot be had back later: remember it as rows pass a block's border."""
        if self._prefixes is None or not self._prefixes.has_state:
            return
        for row in self._batch.rows:
            length = self._batch.length(row)
            if length % self._prefixes.tree.block_tokens == 0 and length <= len(row.tokens):
                self._prefixes.keep_state(row, row.tokens[:length], self._batch.view(row, length))

    def _compute(self, prompt: Prompt, count: int, wait: bool) -> None:
        request, ticket = prompt.request, prompt.ticket
        if request.scores_prompt and request.computed is None:
            asked = request.job.request.prompt_logprobs
            alternatives = asked if asked is not None else request.job.request.logprobs or 0
            score_chunk(self._model, prompt, count, self._tokenizer, alternatives)
        else:
            compute_chunk(self._model, prompt, count, wait=wait)
        first = ticket.computed == request.cached
        self._scheduler.computed(ticket, count)
        self.counters.prompt_tokens += count
        self._keep_prompt(prompt)
        if request.computed is None and (ticket.remaining or not first):
            done = ticket.computed + (not ticket.remaining)
            self._emit(request, [Progress(done, len(request.job.prompt), request.cached)])

    def _start_rows(self, prompt: Prompt) -> None:
        """The prompt is computed: its rows join the batch."""
        request = prompt.request
        if request.computed is None:
            request.computed = time.monotonic()
            if request.job.request.echo or request.scores_prompt:
                self._emit(request, [PromptEcho(request.job.prompt_text, tuple(prompt.scores))])
        request.prompts.remove(prompt)
        del self._prompts[prompt.ticket]
        cache = prompt.cache if prompt.cache is not None else new_row_cache(self._model)
        for row, ticket in zip(prompt.rows, self._scheduler.split(prompt.ticket), strict=True):
            row.ticket = ticket
            if row.decoder.finished is not None:  # nothing but the prompt was asked for
                self._finish(row)
                continue
            self._batch.join(row, cache, len(prompt.tokens))
        prompt.cache = None

    def _accept(self, row: Row, choice: Choice) -> None:
        request = row.request
        if request.first_token is None:
            request.first_token = time.monotonic()
        row.tokens.append(choice.token)
        row.ticket.length += 1
        row.ticket.growth -= 1
        self.counters.completion_tokens += 1
        try:
            events = row.decoder.accept(choice.token, choice.logprob, choice.top)
        except ServerError as error:
            self._fail(request, error.report)
            return
        if row.decoder.finished is not None:
            self._keep_row(row)
            self._batch.leave([row])
            row.held.extend(events)
            self._finish(row)
            return
        row.held.extend(events)
        row.held_tokens += 1
        if row.held_tokens >= self._options.stream_interval:
            self._emit(request, row.held)
            row.held, row.held_tokens = [], 0

    def _finish(self, row: Row) -> None:
        request, decoder = row.request, row.decoder
        self._scheduler.drop([row.ticket])
        request.rows.remove(row)
        closing = decoder.close(decoder.finished or "stop")
        # Closing may find that the answer was a call.
        self._emit(request, [*row.held, *closing, request.finish(row, decoder.finished or "stop")])
        if not request.rows:
            del self._requests[request.job.id]

    def _preempt(self) -> None:
        """Send rows back to the queue while the live ones outgrow the memory."""
        while (ticket := self._scheduler.victim()) is not None:
            row = next(row for row in self._batch.rows if row.ticket is ticket)
            self._suspend(row)
        if (ticket := self._scheduler.overgrown()) is not None:
            row = next(row for row in self._batch.rows if row.ticket is ticket)
            row.decoder.finished = "length"
            self._batch.leave([row])
            self._finish(row)

    def _suspend(self, row: Row) -> None:
        for other, choice in self._batch.read():  # the draw under way still counts
            self._accept(other, choice)
        if row not in self._batch.rows:
            return
        self._keep_row(row)
        self._batch.leave([row])
        self._scheduler.drop([row.ticket])
        row.ticket.length = len(row.tokens) - 1
        self._scheduler.requeue(row.ticket)
        tokens = tuple(row.tokens[:-1])
        self._await_prompt(Prompt(request=row.request, rows=[row], tokens=tokens, ticket=row.ticket))
        self.counters.preemptions += 1

    def stats(self) -> EngineStats:
        cache = CacheStats() if self._prefixes is None else self._prefixes.stats()
        return engine_stats(self.counters, self._scheduler, self._batch, list(self._requests.values()), cache)

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        if self._prefixes is not None:
            self._prefixes.clear(disk=disk)
        if not prefixes_only:
            mx.clear_cache()

    def reconfigure(self, options: dict[str, Any]) -> None:
        fixed = sorted(set(options) - CHANGEABLE)
        if fixed:
            raise ServerError(
                "unsupported",
                f"{', '.join(fixed)} cannot change while the model runs (these can: {', '.join(sorted(CHANGEABLE))}): "
                "unload the model and load it with the new value.",
            )
        try:
            merged = msgspec.convert({**msgspec.to_builtins(self._options), **options}, ModelOptions)
        except msgspec.ValidationError as error:
            raise ServerError(
                "invalid_request", f"An option has a value that it cannot have: {error}."
            ) from error
        self._options = merged
        self._scheduler.limits.target_gap = merged.target_gap_ms / 1e3
        self._scheduler.limits.queue_size = merged.queue_size

    def close(self) -> None:
        for request in list(self._requests):
            self.cancel(request)
        if self._prefixes is not None:
            self._prefixes.close()

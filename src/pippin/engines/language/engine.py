"""The language engine: jobs in, events out, one step at a time."""

import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from pippin.config.model_options import ModelOptions
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import Event, Failed, PromptEcho
from pippin.core.models import CacheStats, EngineStats
from pippin.engines.base import Emission
from pippin.engines.device import MemoryShares
from pippin.engines.language.batch import Batch
from pippin.engines.language.changes import changed
from pippin.engines.language.engine_stats import Counters, engine_stats
from pippin.engines.language.head import Head
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.lora import Adapters
from pippin.engines.language.prefix_cache import PrefixCache
from pippin.engines.language.prompts import Prompts, progress_of
from pippin.engines.language.row_decoder import RowDecoder
from pippin.engines.language.row_keeping import RowKeeping
from pippin.engines.language.rows import Prompt, Request, Row
from pippin.engines.language.sampling import Choice
from pippin.engines.language.scheduler import Limits, Scheduler, Ticket
from pippin.engines.language.speculation import Speculation
from pippin.engines.language.tokenizer import Tokenizer
from pippin.engines.language.vision.sight import Sight, Viewing

DISK_PAUSE = 0.001  # seconds between looks at blocks under way from the disk


class LanguageEngine:
    """Continuous batching over one model. All on the thread that loaded the weights."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        *,
        options: ModelOptions,
        limits: Limits,
        share: Callable[[int], MemoryShares],
        batch: Batch,
        head: Head,
        joint_prompts: bool,
        prefixes: PrefixCache | None = None,
        speculation: Speculation | None = None,
        sight: Sight | None = None,
        adapters: Adapters,
    ) -> None:
        self.model = model
        self._tokenizer = tokenizer
        self._options = options
        self._share = share
        self._scheduler = Scheduler(limits)
        self._batch = batch
        self._prefixes = prefixes
        self._requests: dict[str, Request] = {}
        self._prompts = Prompts(
            model, tokenizer, self._scheduler, prefixes, adapters, head=head, joint=joint_prompts
        )
        self._keeping = RowKeeping(batch, prefixes)
        self._adapters = adapters
        self._speculation = speculation
        self._sight = sight
        self._arrivals = 0
        self._speculates = False  # the next step is to look for proposals
        self._out: list[Emission] = []
        self.counters = Counters()

    def submit(self, job: LanguageJob) -> None:
        if not job.prompt:
            raise ServerError("invalid_request", "The prompt is empty: send at least one token.", "messages")
        request = Request(job=job, adapter=self._adapters.index(job.request.adapter), viewing=self._view(job))
        self._arrivals += 1
        ticket = Ticket(
            id=job.id,
            priority=job.request.priority,
            arrival=self._arrivals,
            length=len(job.prompt),
            growth=job.max_tokens,
            rows=job.request.n,
        )
        for choice in range(job.request.n):
            decoder = RowDecoder(job, choice, self._tokenizer)
            row = Row(request=request, choice=choice, decoder=decoder, tokens=list(job.prompt), ticket=ticket)
            request.rows.append(row)
        self._scheduler.add(ticket)
        self._requests[job.id] = request
        self._prompts.add(Prompt(request=request, rows=list(request.rows), tokens=job.prompt, ticket=ticket))

    def _view(self, job: LanguageJob) -> Viewing | None:
        if job.media is None:
            return None
        if self._sight is None:
            message = "This model was loaded for text only, and 'messages' holds more: leave it out."
            raise ServerError("unsupported", message, "messages")
        return self._sight.open(job.prompt, job.media)

    def cancel(self, id: str) -> None:
        request = self._requests.pop(id, None)
        if request is None:
            return
        for prompt in list(request.prompts):
            self._prompts.drop(prompt)
        self._leave([row for row in request.rows if row in self._batch.rows])
        self._scheduler.drop(ticket for ticket in self._scheduler.tickets if ticket.id == id)
        self._out = [(owner, event) for owner, event in self._out if owner != id]

    @property
    def busy(self) -> bool:
        return bool(self._requests or self._out or self._keeping)

    def step(self) -> list[Emission]:
        started = time.monotonic()
        self.counters.steps += 1
        self._expire(started)
        admitted = self._admit(started)
        if not self._batch.built:
            self._keeping.settle()
        if admitted or not self._batch.built:
            self._fit()
        decoding = len(self._batch.rows)
        checked = decoding > 0 and self._check_proposals()
        if self._batch.rows and not checked:
            self._batch.launch()
        self._keeping.settle()  # rows that left while the step was built: their text is copied beside it
        tokens = self._compute_prompts(wait=checked or not decoding, start=not checked)
        if self._batch.rows and not checked:
            self._draw()
        if self._prefixes is not None:
            self._prefixes.write_some()
        if not decoding and not tokens and not self._out:
            time.sleep(DISK_PAUSE)  # all that there is to do waits for the disk
        self._preempt()
        seconds = time.monotonic() - started
        self._scheduler.observe(seconds, tokens, decoding)
        self.counters.step_done(seconds, tokens, decoding > 0)
        if self._speculation is not None and decoding and not checked and not tokens:
            self._speculation.observe(seconds, 1, proposed=False)
        sent, self._out = self._out, []
        return sent

    def _draw(self) -> None:
        """A token for every row. The next step is built while the device still works on this one, unless it would be in
        vain."""
        self._batch.sample()
        self._keeping.keep_states()
        rows = self._batch.rows
        self._speculates = self._speculation is not None and self._speculation.wanted(rows)
        ahead = not self._speculates and all(row.ticket.growth > 1 for row in rows)
        if ahead and self._fit():
            self._batch.forward()
        self._read()

    def _fit(self) -> bool:
        """Whether the next step fits in the memory, as far as it can be made to."""
        left = self._scheduler.for_rows()
        self._speculates = self._speculates and self._batch.fit(left, 1 + self._options.num_draft_tokens)
        return self._speculates or self._batch.fit(left)

    def _check_proposals(self) -> bool:
        """Let the model judge several next tokens of each row at once, where there are proposals that may pay."""
        if self._speculation is None or not self._speculates or self._prompts.done():
            return False
        proposals = self._speculation.proposals(self._batch.rows)
        self._speculates = any(proposals)
        if self._speculates:
            self._check(proposals)
            self._speculates = self._speculation.wanted(self._batch.rows)
            return True
        return False

    def _read(self) -> None:
        """Accept the tokens of the last draw."""
        for row, choice in self._batch.read():
            if row in self._batch.rows:  # not so if another choice's token has failed the request
                self._accept(row, choice)

    def _check(self, proposals: list[list[int]]) -> None:
        """Let the model judge the proposals."""
        assert self._speculation is not None
        started = time.monotonic()
        rows = list(self._batch.rows)
        chosen = self._batch.check(proposals)
        for row, proposed, choices in zip(rows, proposals, chosen, strict=True):
            row.draft_tokens += len(proposed)
            row.accepted_tokens += len(choices) - 1
            self.counters.draft_tokens += len(proposed)
            self.counters.accepted_tokens += len(choices) - 1
            for choice in choices:
                if row in self._batch.rows:
                    self._accept(row, choice)
        made = sum(map(len, chosen)) / len(rows)
        self._speculation.observe(time.monotonic() - started, made, proposed=True)

    def _leave(self, rows: list[Row]) -> None:
        self._batch.leave(rows)
        if self._speculation is not None:
            for row in rows:
                self._speculation.proposer.forget(row)

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

    def _admit(self, now: float) -> bool:
        """Whether there are new prompts to compute."""
        admitted = self._scheduler.admit()
        for ticket in admitted:
            request = self._prompts.of(ticket).request
            if request.admitted is None:
                request.admitted = now
        return bool(admitted)

    def _compute_prompts(self, *, wait: bool, start: bool) -> int:
        """Work on prompts for as many tokens as this step may; gives how many it was. `start`: rows may join now."""
        self._prompts.release()
        budget = self._scheduler.chunk() if len(self._prompts) else 0
        spent = 0
        while spent < budget and (prompt := self._prompts.next()) is not None:
            count, computed = self._prompts.compute(prompt, budget - spent, wait=wait)
            spent += count
            self.counters.prompt_tokens += count if computed else 0
            for each in computed:
                self._emit(each.request, progress_of(each))
            if not wait:
                break  # whoever decodes waits for one pass
        for prompt in self._prompts.done() if start else ():
            self._start_rows(prompt)
        return spent

    def _start_rows(self, prompt: Prompt) -> None:
        """The prompt is computed: its rows join the batch."""
        request = prompt.request
        if request.computed is None:
            request.computed = time.monotonic()
            if request.job.request.echo or request.scores_prompt:
                self._emit(request, [PromptEcho(request.job.prompt_text, tuple(prompt.scores))])
        self._prompts.drop(prompt)
        if request.viewing is not None and not request.prompts:
            request.viewing.release()
        assert prompt.cache is not None
        assert prompt.logits is not None
        tickets = self._scheduler.split(prompt.ticket)
        self._batch.limit = self._scheduler.for_rows()
        for row, ticket in zip(prompt.rows, tickets, strict=True):
            row.ticket = ticket
            if row.decoder.finished is not None:  # nothing but the prompt was asked for
                self._finish(row)
                continue
            self._batch.join(row, prompt.cache, prompt.logits, coming=self._scheduler.coming(ticket))
        prompt.cache = prompt.logits = None

    def _accept(self, row: Row, choice: Choice) -> None:
        request = row.request
        if request.first_token is None:
            request.first_token = time.monotonic()
        row.tokens.append(choice.token)
        row.ticket.grow()
        self.counters.completion_tokens += 1
        try:
            events = row.decoder.accept(choice.token, choice.logprob, choice.top)
        except ServerError as error:
            self._fail(request, error.report)
            return
        if row.decoder.finished is not None:
            self._keeping.note(row)
            self._leave([row])
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
            if ticket.phase == "prefill":
                self._put_back(self._prompts.of(ticket))
            elif self._scheduler.can_wait(ticket):
                self._suspend(self._row(ticket))
            else:
                self._cut(self._row(ticket))
        if (ticket := self._scheduler.overgrown()) is not None:
            self._cut(self._row(ticket))

    def _row(self, ticket: Ticket) -> Row:
        return next(row for row in self._batch.rows if row.ticket is ticket)

    def _cut(self, row: Row) -> None:
        """No memory is left for more of it: it ends as at the end of the window."""
        row.decoder.finished = "length"
        self._leave([row])
        self._finish(row)

    def _put_back(self, prompt: Prompt) -> None:
        """Compute it anew later."""
        self._scheduler.drop([prompt.ticket])
        self._scheduler.requeue(prompt.ticket)
        prompt.forget()
        self.counters.preemptions += 1

    def _resize(self, memory: int) -> None:
        """Rows and prompts have so much memory from now on."""
        self._scheduler.limits.memory = memory
        for ticket in self._scheduler.hopeless():
            self._give_up(self._prompts.of(ticket))
        self._preempt()
        self._fit()

    def _give_up(self, prompt: Prompt) -> None:
        """It does not fit any more: what was said so far is the answer, else a refusal."""
        if prompt.request.computed is not None:  # then it is one row that was preempted
            [row] = prompt.rows
            self._prompts.drop(prompt)
            row.decoder.finished = "length"
            self._finish(row)
            return
        left = self._scheduler.limits.memory / 2**20
        message = (
            f"The prompt of {prompt.ticket.length} tokens needs more KV cache than the {left:.1f} MiB that are left "
            "beside other models: try again later."
        )
        self._fail(prompt.request, ErrorReport(kind="overloaded", message=message, retry_after=10.0))

    def _suspend(self, row: Row) -> None:
        self._keeping.note(row)
        self._leave([row])
        self._scheduler.drop([row.ticket])
        row.ticket.length = len(row.tokens)
        self._scheduler.requeue(row.ticket)
        self._prompts.add(
            Prompt(request=row.request, rows=[row], tokens=tuple(row.tokens), ticket=row.ticket)
        )
        self.counters.preemptions += 1

    def stats(self) -> EngineStats:
        cache = CacheStats() if self._prefixes is None else self._prefixes.stats()
        requests = list(self._requests.values())
        return engine_stats(self.counters, self._scheduler, self._batch, requests, cache, self._sight)

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        if self._prefixes is not None:
            self._prefixes.clear(disk=disk)
        if not prefixes_only:
            if self._sight is not None:
                self._sight.cache.clear()
            mx.clear_cache()

    def reconfigure(self, options: dict[str, Any]) -> None:
        merged = changed(self._options, options)
        if merged.memory_bytes is not None and "memory_bytes" in options:
            shares = self._share(merged.memory_bytes)  # the pool's, which also counts what others take
            self._resize(shares.rows)
            if self._prefixes is not None:
                self._prefixes.tree.resize(shares.prefixes)
        self._options = merged
        self._scheduler.limits.target_gap = merged.target_gap_ms / 1e3
        self._scheduler.limits.queue_size = merged.queue_size

    def close(self) -> None:
        for request in list(self._requests):
            self.cancel(request)
        if self._prefixes is not None:
            self._prefixes.close()

"""Who gives way where memory is short: rows go back to the queue, and what can never fit any more ends."""

import time
from collections.abc import Sequence

from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import Event, Failed
from pippin.engines.base import Emission
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.kv_cache.slots import PromptCache
from pippin.engines.language.model.lora import Adapters
from pippin.engines.language.prefix_cache.cache import PrefixCache
from pippin.engines.language.sampling.sampler import Choice
from pippin.engines.language.step.batch import Batch
from pippin.engines.language.step.decoder import RowDecoder
from pippin.engines.language.step.prefill import Prompts
from pippin.engines.language.step.scheduler import Scheduler, Ticket
from pippin.engines.language.step.sequences import Prompt, Request, Row
from pippin.engines.language.step.speculation import Proposer
from pippin.engines.language.step.stats import Counters
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.language.vision.sight import Sight, Viewing


class RowKeeping:
    """A row that ends is `noted` at once and kept with `settle`: copying it waits for the step under way, and the
    client should not."""

    def __init__(self, batch: Batch, prefixes: PrefixCache | None) -> None:
        self._batch = batch
        self._prefixes = prefixes
        self._noted: list[tuple[bytes, tuple[int, ...], PromptCache]] = []

    def __bool__(self) -> bool:
        """Whether rows wait to be kept."""
        return bool(self._noted)

    def note(self, row: Row) -> None:
        """Remember a row that is about to leave: a conversation goes on from its end."""
        if self._prefixes is None:
            return
        length = min(row.slot.length, len(row.tokens))
        stop = length // self._prefixes.tree.block_tokens * self._prefixes.tree.block_tokens
        if stop and self._earliest(row, length) <= stop:
            job = row.request.job
            self._noted.append((job.key, job.identify(row.tokens[:stop]), row.slot.view(stop)))

    def _earliest(self, row: Row, length: int) -> int:
        """The first position as of which a row of this length can be had."""
        assert self._prefixes is not None
        if self._prefixes.has_state or not row.slot.looks_back:
            return length  # state is of the very end
        if self._prefixes.has_snapshots:
            return row.joined  # a window came with what it needs to go on from there
        return 0

    def settle(self) -> None:
        """Copy what was noted; before the next step is built, which would have to copy whole rows otherwise."""
        noted, self._noted = self._noted, []
        if self._prefixes is not None:
            for key, tokens, cache in noted:
                self._prefixes.keep(key, tokens, cache)

    def keep_states(self) -> None:
        """Recurrent state cannot be had back later: remember it as rows pass a block's border."""
        if self._prefixes is None or not self._prefixes.has_state:
            return
        for row in self._batch.rows:
            length = row.slot.length
            if length % self._prefixes.tree.block_tokens == 0 and length <= len(row.tokens):
                tokens = row.request.job.identify(row.tokens[:length])
                self._prefixes.keep_state(row, tokens, row.slot.view(length))


class Requests:
    """What is to be told of them gathers in `events`, until a step ends."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        scheduler: Scheduler,
        batch: Batch,
        prompts: Prompts,
        keeping: RowKeeping,
        counters: Counters,
        *,
        adapters: Adapters,
        proposer: Proposer | None,
        sight: Sight | None,
        stream_interval: int,
    ) -> None:
        self.stream_interval = stream_interval
        self.events: list[Emission] = []
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._batch = batch
        self._prompts = prompts
        self._keeping = keeping
        self._counters = counters
        self._adapters = adapters
        self._proposer = proposer
        self._sight = sight
        self._live: dict[str, Request] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._live)

    @property
    def live(self) -> list[Request]:
        """Those that have not ended."""
        return list(self._live.values())

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
        self._live[job.id] = request
        self._prompts.add(Prompt(request=request, rows=list(request.rows), tokens=job.prompt, ticket=ticket))

    def _view(self, job: LanguageJob) -> Viewing | None:
        if job.media is None:
            return None
        if self._sight is None:
            message = "This model was loaded for text only, and 'messages' holds more: leave it out."
            raise ServerError("unsupported", message, "messages")
        return self._sight.open(job.prompt, job.media)

    def cancel(self, id: str) -> None:
        request = self._live.pop(id, None)
        if request is None:
            return
        for prompt in list(request.prompts):
            self._prompts.drop(prompt)
        self.leave([row for row in request.rows if row in self._batch.rows])
        self._scheduler.drop(ticket for ticket in self._scheduler.tickets if ticket.id == id)
        self.events = [(owner, event) for owner, event in self.events if owner != id]

    def expire(self, now: float, patience: float | None) -> None:
        """End those that take longer than they may, and those that wait for longer than `patience` seconds."""
        for request in self.live:
            waited = now - request.job.created
            limit = request.job.request.timeout
            if limit is not None and waited > limit:
                message = f"The request took longer than its timeout of {limit:g} seconds."
                self.fail(request, ErrorReport(kind="timeout", message=message, param="timeout"))
            elif patience is not None and request.admitted is None and waited > patience:
                message = (
                    f"The request waited longer than {patience:g} seconds in the queue: try again later."
                )
                self.fail(request, ErrorReport(kind="overloaded", message=message, retry_after=1.0))

    def fail(self, request: Request, report: ErrorReport) -> None:
        self.cancel(request.job.id)
        self.tell(request, [Failed(report)])

    def tell(self, request: Request, events: Sequence[Event]) -> None:
        self.events.extend((request.job.id, event) for event in events)

    def accept(self, row: Row, choice: Choice) -> None:
        """A token was drawn for the row: it becomes text, and maybe the row's last."""
        request = row.request
        if request.first_token is None:
            request.first_token = time.monotonic()
        row.tokens.append(choice.token)
        row.ticket.grow()
        self._counters.completion_tokens += 1
        try:
            events = row.decoder.accept(choice.token, choice.logprob, choice.top)
        except ServerError as error:
            self.fail(request, error.report)
            return
        row.held.extend(events)
        if row.decoder.finished is not None:
            self._keeping.note(row)
            self.leave([row])
            self.finish(row)
            return
        row.held_tokens += 1
        if row.held_tokens >= self.stream_interval:
            self.tell(request, row.held)
            row.held, row.held_tokens = [], 0

    def leave(self, rows: list[Row]) -> None:
        """These rows run no more, ended or not."""
        self._batch.leave(rows)
        if self._proposer is not None:
            for row in rows:
                self._proposer.forget(row)

    def finish(self, row: Row) -> None:
        """The last of a row that runs no more, and of its request if it was the last one."""
        request, decoder = row.request, row.decoder
        self._scheduler.drop([row.ticket])
        request.rows.remove(row)
        closing = decoder.close(decoder.finished or "stop")
        # Closing may find that the answer was a call.
        self.tell(request, [*row.held, *closing, request.finish(row, decoder.finished or "stop")])
        if not request.rows:
            del self._live[request.job.id]

    def cut(self, row: Row) -> None:
        """The row ends as at the end of the window."""
        row.decoder.finished = "length"
        if row in self._batch.rows:
            self.leave([row])
        self.finish(row)


class Preemption:
    """The scheduler says who; here is what becomes of them."""

    def __init__(
        self,
        scheduler: Scheduler,
        batch: Batch,
        prompts: Prompts,
        requests: Requests,
        keeping: RowKeeping,
        counters: Counters,
    ) -> None:
        self._scheduler = scheduler
        self._batch = batch
        self._prompts = prompts
        self._requests = requests
        self._keeping = keeping
        self._counters = counters

    def preempt(self) -> None:
        """Send rows back to the queue while the live ones outgrow the memory."""
        while (ticket := self._scheduler.victim()) is not None:
            if ticket.phase == "prefill":
                self._put_back(self._prompts.of(ticket))
            elif self._scheduler.can_wait(ticket):
                self.suspend(self._row(ticket))
            else:
                self._requests.cut(self._row(ticket))
        if (ticket := self._scheduler.overgrown()) is not None:
            self._requests.cut(self._row(ticket))

    def resize(self, memory: int) -> None:
        """Rows and prompts have so much memory from now on."""
        self._scheduler.limits.memory = memory
        for ticket in self._scheduler.hopeless():
            self._give_up(self._prompts.of(ticket))
        self.preempt()
        self._batch.fit(self._scheduler.for_rows())

    def suspend(self, row: Row) -> None:
        """It goes on later as if nothing had been: its text is a prompt, most of which the prefix cache keeps."""
        self._keeping.note(row)
        self._requests.leave([row])
        self._scheduler.drop([row.ticket])
        row.ticket.length = len(row.tokens)
        self._scheduler.requeue(row.ticket)
        self._prompts.add(
            Prompt(request=row.request, rows=[row], tokens=tuple(row.tokens), ticket=row.ticket)
        )
        self._counters.preemptions += 1

    def _row(self, ticket: Ticket) -> Row:
        return next(row for row in self._batch.rows if row.ticket is ticket)

    def _put_back(self, prompt: Prompt) -> None:
        """Compute it anew later."""
        self._prompts.forget(prompt)
        self._scheduler.drop([prompt.ticket])
        self._scheduler.requeue(prompt.ticket)
        self._counters.preemptions += 1

    def _give_up(self, prompt: Prompt) -> None:
        """It does not fit any more: what was said so far is the answer, else a refusal."""
        if prompt.request.computed is not None:  # then it is one row that was preempted
            [row] = prompt.rows
            self._prompts.drop(prompt)
            self._requests.cut(row)
            return
        left = self._scheduler.limits.memory / 2**20
        message = (
            f"The prompt of {prompt.ticket.length} tokens needs more KV cache than the {left:.1f} MiB that are left "
            "beside other models: try again later."
        )
        self._requests.fail(prompt.request, ErrorReport(kind="overloaded", message=message, retry_after=10.0))

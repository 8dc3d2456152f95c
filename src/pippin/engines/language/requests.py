"""The engine's requests, from their submission to their last event."""

import time
from collections.abc import Sequence

from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import Event, Failed
from pippin.engines.base import Emission
from pippin.engines.language.batch import Batch
from pippin.engines.language.engine_stats import Counters
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.lora import Adapters
from pippin.engines.language.prompts import Prompts
from pippin.engines.language.row_decoder import RowDecoder
from pippin.engines.language.row_keeping import RowKeeping
from pippin.engines.language.rows import Prompt, Request, Row
from pippin.engines.language.sampled import Choice
from pippin.engines.language.scheduler import Scheduler, Ticket
from pippin.engines.language.speculation import Proposer
from pippin.engines.language.tokenizer import Tokenizer
from pippin.engines.language.vision.sight import Sight, Viewing


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

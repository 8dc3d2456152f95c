"""Who gives way where memory is short: rows go back to the queue, and what can never fit any more ends."""

from pippin.core.errors import ErrorReport
from pippin.engines.language.batch import Batch
from pippin.engines.language.engine_stats import Counters
from pippin.engines.language.prompts import Prompts
from pippin.engines.language.requests import Requests
from pippin.engines.language.row_keeping import RowKeeping
from pippin.engines.language.rows import Prompt, Row
from pippin.engines.language.scheduler import Scheduler, Ticket


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
        self._batch.groups.fit(self._scheduler.for_rows())

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

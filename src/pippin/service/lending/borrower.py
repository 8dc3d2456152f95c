"""Uses the models of another process: leases come through the channel, requests go over links of our own."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ServerOptions
from pippin.core.errors import SHUTTING_DOWN, ErrorReport, ServerError
from pippin.core.link import Order, Output, Report
from pippin.core.models import ModelInfo, ModelKind, ModelState
from pippin.core.tasks import Task
from pippin.runtime.pool.source import ModelSource
from pippin.runtime.replicas.group import LOST, RescuedMailbox
from pippin.runtime.replicas.routing import Prefix, prefix_of
from pippin.runtime.workers.link import Link, Mailbox, Mailboxes
from pippin.service.lending.channel import Channel
from pippin.service.lending.messages import (
    Complete,
    Fetch,
    Found,
    FromOwner,
    Lease,
    Leased,
    Lent,
    LinkLost,
    Place,
    Placed,
    Pooled,
    Release,
    WorkerFails,
)
from pippin.service.lending.questions import Questions

log = logging.getLogger(__name__)


class BorrowedWorker:
    """A worker of the owner, reached over this process's own link."""

    def __init__(self, lent: Lent, lost: Callable[[], None]) -> None:
        self.info = lent.info
        self._lost = lost
        self._mailboxes = Mailboxes(self._send, lent.guest)
        self._link: Link | None = None
        self._early: list[Order] = []  # orders sent before the link is open
        self._end: ErrorReport | None = None

    async def open(self, connection: socket.socket) -> None:
        """Start using the link."""
        connection.setblocking(False)
        self._link = await Link.open(connection, self._report, self._closed)
        for order in self._early:
            self._link.send(order)
        self._early.clear()

    def submit(self, id: str, task: Task, choices: int, mailbox: Mailbox | None = None) -> Mailbox:
        """Send a request; its events go to `mailbox`, or to a new one.

        Raises `ServerError` if the worker is gone or takes no more.
        """
        if self._end is not None:
            raise ServerError.of(self._end)
        return self._mailboxes.submit(id, task, choices, self.info, mailbox)

    def cancel(self, id: str) -> None:
        """Drop a request; its mailbox gets nothing more."""
        self._mailboxes.cancel(id)

    def fail(self, error: ErrorReport, *, gone: bool) -> None:
        """Fail all requests; take no more if the worker is gone."""
        self._mailboxes.fail_all(error)
        if gone:
            self._end = error
            if self._link is not None:
                self._link.close()

    def _send(self, order: Order) -> None:
        if self._link is None:
            self._early.append(order)
        else:
            self._link.send(order)

    def _report(self, report: Report) -> None:
        if isinstance(report, Output):  # guests receive no other reports
            self._mailboxes.deliver(report.events)

    def _closed(self, fault: Exception | None) -> None:
        if self._end is None:
            self._lost()  # the owner knows why and reports it


@dataclass(eq=False)
class _Placed:
    task: Task
    choices: int
    mailbox: RescuedMailbox
    prefix: Prefix
    placing: "asyncio.Task[None] | None" = None
    worker: BorrowedWorker | None = None


class BorrowedReplicas:
    """The replicas of one model, for the request of one lease. The owner decides which replica answers."""

    def __init__(self, info: ModelInfo, find: Callable[[Prefix, bool], Awaitable[BorrowedWorker]]) -> None:
        """`find` asks the owner for a replica: for a new request, or again after a loss. It raises `ServerError`."""
        self.info = info
        self._find = find
        self._requests: dict[str, _Placed] = {}

    def submit(self, id: str, task: Task, choices: int, mailbox: Mailbox | None = None) -> Mailbox:
        """Have a request placed, then send it to its replica."""
        assert mailbox is None, "replicas are not nested"
        own = RescuedMailbox(choices, partial(self.cancel, id), partial(self._lost, id))
        request = self._requests[id] = _Placed(task, choices, own, prefix_of(task))
        request.placing = asyncio.create_task(self._place(id, request, None))
        return own

    def cancel(self, id: str) -> None:
        """Drop a request; its mailbox gets nothing more."""
        request = self._requests.pop(id, None)
        if request is None:
            return
        if request.placing is not None:
            request.placing.cancel()
        if request.worker is not None:
            request.worker.cancel(id)

    def _lost(self, id: str, error: ErrorReport) -> bool:
        request = self._requests.get(id)
        if request is None:
            return False
        request.worker = None
        request.placing = asyncio.create_task(self._place(id, request, error))
        return True

    async def _place(self, id: str, request: _Placed, loss: ErrorReport | None) -> None:
        """Place a request, for the first time or after a loss. If nobody takes it after a loss, it fails with that
        loss."""
        try:
            worker = await self._find(request.prefix, loss is not None)
            request.worker, request.placing = worker, None
            worker.submit(id, request.task, request.choices, request.mailbox)
        except ServerError as error:
            if error.report.kind == LOST and loss is None:
                request.mailbox.fail(error.report)
            else:
                request.mailbox.give_up(loss or error.report)
        else:
            if loss is not None:
                log.info("Request %s is begun again elsewhere: %s", id, loss.message)


class BorrowedLease:
    """A lease that the owner holds for a request of this process."""

    def __init__(
        self,
        worker: BorrowedWorker | BorrowedReplicas,
        options: ModelOptions,
        release: Callable[[float | None], None],
    ) -> None:
        self.worker = worker
        self.options = options
        self._release: Callable[[float | None], None] | None = release

    def release(self, keep_alive: float | None = None) -> None:
        """Give the lease back; a second call does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release(keep_alive)


class BorrowedPool:
    """The owner's pool, as far as requests need it."""

    def __init__(self, channel: Channel[FromOwner], questions: Questions) -> None:
        self._channel = channel
        self._questions = questions
        self._workers: dict[int, BorrowedWorker] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._models: dict[str, Pooled] = {}

    async def lease(self, info: ModelInfo) -> BorrowedLease:
        """Lease a model, which the owner loads if need be; returns once its worker can prepare requests."""
        leased: Leased = await self._questions.ask(lambda serial: Lease(serial, info.id), self._give_back)
        give_back = partial(self._give_back, leased.serial)
        if leased.worker is None:
            replicas = BorrowedReplicas(leased.info, partial(self._place, leased.serial))
            return BorrowedLease(replicas, leased.options, give_back)
        try:
            worker = self._worker(leased.worker)
        except ServerError:
            give_back()
            raise
        worker.info = leased.info
        return BorrowedLease(worker, leased.options, give_back)

    async def fetch(self, name: str) -> ModelInfo:
        """Have a missing model downloaded. Raises `ServerError`."""
        found: Found = await self._questions.ask(lambda serial: Fetch(serial, name))
        return found.info

    async def complete(self, info: ModelInfo) -> None:
        """Have the files that the model's options name downloaded. Raises `ServerError`."""
        await self._questions.ask(lambda serial: Complete(serial, info))

    def states(self) -> list[ModelState]:
        return [model.state for model in self._models.values()]

    def info(self, model: str) -> ModelInfo | None:
        known = self._models.get(model)
        return None if known is None else known.info

    def last_loaded(self, kind: ModelKind | None = None) -> str | None:
        """As `Pool.last_loaded`."""
        fitting = [
            model
            for model in self._models.values()
            if model.info is not None and (kind is None or model.info.kind in (kind, "scripted"))
        ]
        last = max(reversed(fitting), key=lambda model: model.state.loaded_at or 0.0, default=None)
        return None if last is None else last.state.id

    async def adopt(self, options: ServerOptions) -> None:
        """Does nothing: changed options apply in the owner's pool."""

    async def close(self, deadline: float) -> None:
        """Close the links."""
        for worker in list(self._workers.values()):
            worker.fail(SHUTTING_DOWN, gone=True)
        self._workers.clear()

    def receive(self, message: Lent | WorkerFails, descriptor: int | None) -> None:
        """Handle the owner's messages about workers."""
        match message:
            case Lent(number):
                assert descriptor is not None
                self._meet(number, message, socket.socket(fileno=descriptor))
            case WorkerFails(number, error, gone):
                worker = self._workers.pop(number, None) if gone else self._workers.get(number)
                if worker is not None:
                    worker.fail(error, gone=gone)

    def mirror(self, models: list[Pooled]) -> None:
        """Adopt the owner's list of models."""
        self._models = {model.state.id: model for model in models}

    async def _place(self, lease: int, prefix: Prefix, again: bool) -> BorrowedWorker:
        """The replica that answers a lease's request. Raises `ServerError`."""
        placed: Placed = await self._questions.ask(lambda serial: Place(serial, lease, prefix, again))
        return self._worker(placed.worker)

    def _worker(self, number: int) -> BorrowedWorker:
        """Raises `ServerError` if the worker died after the owner named it."""
        worker = self._workers.get(number)
        if worker is None:
            raise ServerError(LOST, "The process of the model died. The next request starts it again.")
        return worker

    def _meet(self, number: int, lent: Lent, connection: socket.socket) -> None:
        worker = BorrowedWorker(lent, lambda: self._channel.send(LinkLost(number)))
        self._workers[number] = worker
        opening = asyncio.create_task(worker.open(connection))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    def _give_back(self, serial: int, keep_alive: float | None = None) -> None:
        self._channel.send(Release(serial, keep_alive))


class BorrowedCatalog:
    """A catalog that reads this machine's disk itself, and leaves downloads to the owner."""

    def __init__(self, catalog: ModelSource, pool: BorrowedPool) -> None:
        self._pool = pool
        self.models = catalog.models
        self.missing = catalog.missing
        self.resolve = catalog.resolve
        self.knows = catalog.knows
        self.search = catalog.search
        self.remove = catalog.remove
        self.adopt = catalog.adopt
        self.options_for = catalog.options_for

    async def ensure(self, name: str, on_progress: Callable[[int, int, str], None]) -> ModelInfo:
        """As `ModelSource.ensure`; the owner logs the progress."""
        return await self._pool.fetch(name)

    async def complete(self, info: ModelInfo, on_progress: Callable[[int, int, str], None]) -> None:
        """As `ModelSource.complete`."""
        await self._pool.complete(info)

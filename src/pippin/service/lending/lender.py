"""Leases models to another process: the part of the owner's end of the channel that deals with models."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

from pippin.core.errors import ErrorReport, ServerError
from pippin.core.models import ModelInfo
from pippin.core.traces import trace_of
from pippin.runtime.pool.pool import Lease as PoolLease
from pippin.runtime.pool.pool import Pool
from pippin.runtime.ranks.group import RankGroup
from pippin.runtime.replicas.group import Placement
from pippin.runtime.replicas.processes import Replicas
from pippin.runtime.workers.supervisor import WorkerProcess
from pippin.runtime.workers.worker import Worker
from pippin.service.lending.channel import Channel
from pippin.service.lending.messages import (
    Complete,
    Fetch,
    Found,
    Lease,
    Leased,
    Lent,
    LinkLost,
    Place,
    Placed,
    Refused,
    Release,
    ToOwner,
    WorkerFails,
)

log = logging.getLogger(__name__)

LAST_WORDS: Final = 5.0
"""Seconds after the end of a link to wait for the worker's own end, which gives the reason."""

Find = Callable[[str], Awaitable[ModelInfo]]


class Lender:
    """Everything lent to one other process. `close` takes it all back."""

    def __init__(
        self,
        pool: Pool,
        channel: Channel[ToOwner],
        find: Find,
        fetch: Find,
        complete: Callable[[ModelInfo], Awaitable[None]],
    ) -> None:
        """`find` resolves a model's id; `fetch` and `complete` download what is missing."""
        self._pool = pool
        self._channel = channel
        self._find = find
        self._fetch = fetch
        self._complete = complete
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._leases: dict[int, PoolLease] = {}
        self._placements: dict[int, Placement] = {}  # by lease, for models with replicas
        self._workers: dict[Worker, tuple[int, Callable[[ErrorReport], None]]] = {}
        self._numbers = 0
        self._partings: set[asyncio.Task[None]] = set()

    def receive(self, message: Lease | Release | Place | LinkLost | Fetch | Complete) -> None:
        """Handle a message from the other process."""
        match message:
            case Lease(serial, model):
                self._begin(serial, self._lease(serial, model))
            case Release(serial, keep_alive):
                if (task := self._tasks.get(serial)) is not None:
                    task.cancel()
                elif (lease := self._leases.pop(serial, None)) is not None:
                    self._leave(serial)
                    lease.release(keep_alive)
            case Place():
                self._place(message)
            case LinkLost(number):
                self._part(number)
            case Fetch(serial, name):
                self._begin(serial, self._answer(serial, self._fetch(name)))
            case Complete(serial, info):
                self._begin(serial, self._answer(serial, self._completed(info)))

    @property
    def leases(self) -> int:
        """Number of the other process's requests that hold a model."""
        return len(self._leases)

    def close(self) -> None:
        """Take everything back, because the other process is gone."""
        for task in (*self._tasks.values(), *self._partings):
            task.cancel()
        for serial, lease in self._leases.items():
            self._leave(serial)
            lease.release()
        self._leases.clear()
        for worker in list(self._workers):
            self._forget(worker)

    def _begin(self, serial: int, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"lend {serial}")
        self._tasks[serial] = task
        task.add_done_callback(lambda _: self._tasks.pop(serial, None))

    async def _lease(self, serial: int, model: str) -> None:
        try:
            lease = await self._pool.lease(self._pool.info(model) or await self._find(model))
            try:
                number = None if isinstance(lease.worker, Replicas) else self._lent(lease.worker)
            except BaseException:
                lease.release()
                raise
        except Exception as error:
            self._refuse(serial, error)
            return
        self._leases[serial] = lease
        del self._tasks[serial]  # from here on `Release` refers to the lease
        self._channel.send(Leased(serial, number, lease.worker.info, lease.options))

    def _place(self, question: Place) -> None:
        """Answer which replica takes a request. Only this process knows the replicas' state, so a conversation stays
        where its cache is, whichever process receives its next turn."""
        serial, lease = question.serial, question.lease
        try:
            if lease not in self._leases or not isinstance(group := self._leases[lease].worker, Replicas):
                raise ServerError("worker_died", "The model was unloaded.")
            if not question.again:
                self._leave(lease)
                self._placements[lease] = Placement(question.prefix)
            elif lease not in self._placements or not self._placements[lease].lost():
                raise ServerError("worker_died", "The process of the model died.")
            number = self._placed(group, self._placements[lease])
        except Exception as error:
            self._refuse(serial, error)
        else:
            self._channel.send(Placed(serial, number))

    def _placed(self, group: Replicas, placement: Placement) -> int:
        """The number of the replica that takes a request. Raises `ServerError` if none does."""
        while True:
            worker = group.place(placement)
            try:
                return self._lent(worker)
            except ServerError:  # it has just died; try the next one
                placement.leave()

    def _leave(self, lease: int) -> None:
        if (placement := self._placements.pop(lease, None)) is not None:
            placement.leave()

    async def _answer(self, serial: int, finding: Awaitable[ModelInfo]) -> None:
        try:
            self._channel.send(Found(serial, await finding))
        except Exception as error:
            self._refuse(serial, error)

    def _refuse(self, serial: int, error: Exception) -> None:
        """Answer with the error, whatever it is: the other process waits for an answer."""
        if isinstance(error, ServerError):
            self._channel.send(Refused(serial, error.report))
            return
        log.error("A model could not be lent.\n%s", trace_of(error))
        message = "The request failed because of a fault in the server; its log has more."
        self._channel.send(Refused(serial, ErrorReport(kind="internal", message=message)))

    async def _completed(self, info: ModelInfo) -> ModelInfo:
        await self._complete(info)
        return info

    def _lent(self, worker: Worker) -> int:
        """The number under which the other process knows a worker, lending it first if need be. Raises
        `ServerError`."""
        if (known := self._workers.get(worker)) is not None:
            return known[0]
        assert isinstance(worker, WorkerProcess | RankGroup), "replicas are lent one by one"
        self._numbers += 1
        number = self._numbers
        failed = partial(self._fails, number)
        link, guest = worker.lend(failed)
        self._workers[worker] = number, failed
        worker.died.add_done_callback(partial(self._on_death, worker))
        self._channel.send(Lent(number, guest, worker.info), link.detach())
        return number

    def _fails(self, number: int, error: ErrorReport) -> None:
        self._channel.send(WorkerFails(number, error, gone=False))

    def _on_death(self, worker: Worker, died: "asyncio.Future[ErrorReport]") -> None:
        if (known := self._workers.get(worker)) is not None:
            self._forget(worker)
            self._channel.send(WorkerFails(known[0], died.result(), gone=True))

    def _part(self, number: int) -> None:
        """The other process has lost its link. The next lease opens a new one, unless the worker is gone."""
        worker = next((each for each, known in self._workers.items() if known[0] == number), None)
        if worker is not None:
            parting = asyncio.create_task(self._parting(worker))
            self._partings.add(parting)
            parting.add_done_callback(self._partings.discard)

    async def _parting(self, worker: Worker) -> None:
        await asyncio.wait({worker.died}, timeout=LAST_WORDS)
        if not worker.died.done():
            message = "The connection to the model's process was lost. Send the request again."
            error = ErrorReport(kind="worker_died", message=message)
            number, _ = self._workers[worker]
            self._forget(worker)
            self._channel.send(WorkerFails(number, error, gone=True))

    def _forget(self, worker: Worker) -> None:
        _, failed = self._workers.pop(worker)
        if isinstance(worker, WorkerProcess | RankGroup):
            worker.take_back(failed)

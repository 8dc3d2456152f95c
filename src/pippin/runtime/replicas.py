"""Replicas of one model as worker processes, here or in a cluster, which the pool leases as one worker.

The model serves once its first replica does; the others take requests as they become ready. A replica that dies, or for
which the cluster had no room, is started again while the others continue. The pool learns of a death only when no
replica is left that takes requests.

The replica that computes a request delivers its events straight into one mailbox, so replicas add no hop to a token.
Whoever sent a request that is lost with its replica sends it again, and it is placed anew. A replica is chosen by the
beginning of the prompt.
"""

import asyncio
import hashlib
import logging
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from pippin.config.options.model import ModelOptions, replicas_here
from pippin.core.decoding import convert
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.models import EngineStats, ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate, Task
from pippin.runtime.cluster.asking import Clusters
from pippin.runtime.cluster.needs import CLUSTER, PLACE_WITHIN, Cluster, Need, in_the_cluster
from pippin.runtime.ranks.places import need_of_each
from pippin.runtime.workers.link import LOST, Mailbox
from pippin.runtime.workers.machines import shared_out
from pippin.runtime.workers.worker import Launcher, Requests, Stages, Worker

BLOCK: Final = 256  # bytes of text
MOST_BLOCKS: Final = 4096  # in one prompt: text beyond 1 MiB does not affect the choice
REMEMBERED: Final = 1 << 15  # blocks per replica: 8 MiB of text, about 100 bytes of memory each
MUCH_BUSIER: Final = 2  # times as many requests as the idlest
AT_LEAST_BUSIER: Final = 4  # more requests; below that, queueing costs less than recomputing a prompt

Prefix = tuple[bytes, ...]
"""Hashes of the blocks of a prompt, each covering all before it."""


def prefix_of(task: Task) -> Prefix:
    """The block hashes of a task's prompt; none for a task without a prompt, or with one shorter than a block.

    The API process has no tokenizer, so a prompt is cut into blocks of text rather than tokens. Otherwise this works
    like the prefix tree: a block's hash covers everything before it, so equal hashes mean equal prefixes.
    """
    if not isinstance(task, Generate):
        return ()
    encoded = _encoded(task.request)
    digest = hashlib.blake2b(digest_size=16)
    hashes = []
    for start in range(0, min(len(encoded) - BLOCK + 1, BLOCK * MOST_BLOCKS), BLOCK):
        digest.update(encoded[start : start + BLOCK])
        hashes.append(digest.copy().digest())
    return tuple(hashes)


def _encoded(request: GenerationRequest) -> bytes:
    """The parts of the prompt, in the order in which templates write them. Messages are concatenated without a count in
    front, which would give each turn of a conversation a different prefix."""
    opening = (request.adapter, request.cache_salt, request.tools, request.template_kwargs, request.prompt)
    return b"".join(map(msgspec.msgpack.encode, (*opening, *(request.messages or ()))))


@dataclass
class Seen:
    """The blocks sent to one replica; only the most recently used are remembered."""

    limit: int = REMEMBERED
    _blocks: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    def matched(self, prefix: Prefix) -> int:
        """Number of leading blocks of a prompt that the replica has seen."""
        for count, block in enumerate(prefix):
            if block not in self._blocks:
                return count
        return len(prefix)

    def add(self, prefix: Prefix) -> None:
        # Last block first, so that the end of a prompt is evicted before its beginning.
        for block in reversed(prefix):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self.limit:
            self._blocks.popitem(last=False)

    def __len__(self) -> int:
        return len(self._blocks)


@dataclass(eq=False)
class Seat:
    """One process of a replica, the prompts that it has seen, and the number of its requests that have not ended."""

    spec: WorkerSpec  # starts the next one
    worker: Worker
    seen: Seen = field(default_factory=Seen)
    running: int = 0

    @property
    def is_here(self) -> bool:
        return self.spec.machine is None

    @property
    def prepared(self) -> bool:
        return not self.worker.died.done() and succeeded(self.worker.prompt_ready)

    @property
    def loaded(self) -> bool:
        return self.prepared and succeeded(self.worker.weights_ready)


def succeeded(stage: "asyncio.Future[None]") -> bool:
    return stage.done() and not stage.cancelled() and stage.exception() is None


def choose(prefix: Prefix, seats: Sequence[Seat]) -> Seat | None:
    """The replica for a prompt; None if there are none.

    Ties in the length of the seen prefix go to the least busy replica, then to the one that was sent the least so far.
    """
    if not seats:
        return None

    def business(seat: Seat) -> tuple[int, int]:
        return seat.running, len(seat.seen)

    idlest = min(seats, key=business)
    best = min(seats, key=lambda seat: (-seat.seen.matched(prefix), *business(seat)))
    much_busier = (
        best.running >= idlest.running * MUCH_BUSIER and best.running >= idlest.running + AT_LEAST_BUSIER
    )
    return idlest if much_busier else best


log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 1.0  # seconds before a replica that failed to start is retried; doubled each time
LONGEST_PAUSE: Final = 120.0


async def launch_replicas(launch: Launcher, clusters: Clusters, spec: WorkerSpec) -> Worker:
    """Start one worker, or several if the model's options ask for replicas."""
    if (address := spec.options.get("cluster")) is not None:
        return await Replicas.start(spec, launch, await clusters.find(spec.info, address))
    alone = spec.options.get("replicas", 1) == 1
    return await launch(spec) if alone else await Replicas.start(spec, launch)


class Replicas(Stages):
    """Several worker processes of one model, as one `Worker`."""

    def __init__(
        self, spec: WorkerSpec, launch: Launcher, workers: list[Worker], bound: int | None = None
    ) -> None:
        """`spec` starts each worker again; `bound` is the most memory of one in a cluster, in bytes."""
        super().__init__()
        self.requests: Requests = self  # it places each request
        self._info = spec.info
        self._launch = launch
        self.seats = [Seat(spec, worker) for worker in workers]
        self._bound = bound
        self._sent: dict[str, tuple[Seat, Mailbox]] = {}  # that were not cancelled
        self._memory: int | None = None  # for each replica
        self._ending: asyncio.Task[None] | None = None
        self._tasks = [asyncio.create_task(self._begin())]
        self._tasks += [asyncio.create_task(self._keep(number)) for number in range(len(workers))]

    @classmethod
    async def start(cls, spec: WorkerSpec, launch: Launcher, cluster: Cluster | None = None) -> "Replicas":
        """Start all replicas: in the cluster, or on this machine, where they share the memory and threads of `spec`.

        Raises `ServerError`."""
        options = convert(spec.options, ModelOptions)
        if cluster is None:
            first = again = shared_out(spec, replicas_here(options))
            bound = None
        else:  # reads files
            first, again, bound = await asyncio.to_thread(_in_the_cluster, spec, options, cluster)
        workers: list[Worker] = []
        try:
            for _ in range(options.replicas):
                workers.append(await launch(first))  # noqa: PERF401 (the started ones are ended below)
        except BaseException:
            await asyncio.gather(*(worker.stop(0.0) for worker in workers))
            raise
        return cls(again, launch, workers, bound)

    @property
    def pid(self) -> int | None:
        return next((seat.worker.pid for seat in self.seats if seat.worker.pid), None)

    @property
    def info(self) -> ModelInfo:
        return next((each.worker.info for each in self.seats if each.prepared), self._info)

    @property
    def footprint(self) -> int:
        """Bytes of the replicas on this machine."""
        # A replica that is restarting will take as much as the others.
        sizes = [seat.worker.footprint for seat in self.seats if seat.is_here]
        return max(sizes, default=0) * self._here

    @property
    def progress(self) -> tuple[int, int, str] | None:
        known = [seat.worker.progress for seat in self.seats if seat.worker.progress]
        return min(known, key=lambda progress: progress[0], default=None)

    def load_weights(self, memory_bytes: int | None) -> None:
        """`memory_bytes` is this machine's, shared by the replicas here."""
        self._memory = None if memory_bytes is None else memory_bytes // max(1, self._here)
        for seat in self.seats:
            seat.worker.load_weights(self._memory_of(seat))

    def submit(self, id: str, task: Task, mailbox: Mailbox) -> None:
        """Place a request on the best seat. Raises `ServerError`, of kind `LOST` if there is none."""
        prefix = prefix_of(task)
        # Those with loaded weights; if there are none, those that can at least prepare a request.
        loaded = [seat for seat in self.seats if seat.loaded]
        seat = choose(prefix, loaded or [seat for seat in self.seats if seat.prepared])
        if seat is None:
            raise ServerError(LOST, f"All servers of the model {self._info.id!r} are lost; try again later.")
        self._sent[id] = seat, mailbox
        seat.running += 1
        seat.seen.add(prefix)
        try:
            seat.worker.requests.submit(id, task, mailbox)
        except BaseException:
            self.cancel(id)
            raise

    def cancel(self, id: str) -> None:
        """Drop a request, which may have ended; its mailbox gets nothing more."""
        if (found := self._sent.pop(id, None)) is not None:
            seat, _ = found
            seat.running -= 1
            seat.worker.requests.cancel(id)

    def fail_all(self, error: ErrorReport) -> None:
        for own, (_, mailbox) in list(self._sent.items()):
            self.cancel(own)
            mailbox.fail(error)

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        for seat in self.seats:
            seat.worker.clear_cache(prefixes_only=prefixes_only, disk=disk)
            seat.seen = Seen()

    def reconfigure(self, options: dict[str, object]) -> None:
        if isinstance(share := options.get("memory_bytes"), int):
            self._memory = share // max(1, self._here)
        for seat in self.seats:
            own = {name: value for name, value in options.items() if name != "memory_bytes"}
            if seat.is_here and "memory_bytes" in options:
                own["memory_bytes"] = self._memory
            seat.spec = msgspec.structs.replace(seat.spec, options={**seat.spec.options, **own})
            seat.worker.reconfigure(own)

    async def stats(self) -> EngineStats:
        return EngineStats.total(await asyncio.gather(*(seat.worker.stats() for seat in self.seats)))

    async def stop(self, deadline: float) -> None:
        """Stop all replicas at once, each as a worker stops."""
        report = ErrorReport(kind="worker_died", message="The model was unloaded.")
        self._ending = self._ending or asyncio.create_task(self._end(report, deadline))
        await asyncio.shield(self._ending)

    def _memory_of(self, seat: Seat) -> int | None:
        """Memory limit of a replica. Elsewhere it is the operator's, or None for whatever is free there."""
        return self._memory if seat.is_here else self._bound

    @property
    def _here(self) -> int:
        """The replicas on this machine."""
        return sum(seat.is_here for seat in self.seats)

    async def _begin(self) -> None:
        """Resolve each stage of the load once the first replica has reached it."""
        stages = (
            (self.prompt_ready, {seat.worker.prompt_ready for seat in self.seats}),
            (self.weights_ready, {seat.worker.weights_ready for seat in self.seats}),
        )
        for ours, theirs in stages:
            waiting = theirs
            while waiting and not any(map(succeeded, theirs)):
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not any(map(succeeded, theirs)):
                return  # all have died, which `_keep` reports
            ours.set_result(None)

    async def _keep(self, number: int) -> None:
        """Restart a replica whenever it dies, until the last one has died or all are stopped."""
        while True:
            worker = self.seats[number].worker
            report = await asyncio.shield(worker.died)
            if not self.weights_ready.done():
                # The replica's own error says more than that its process has ended.
                why = worker.weights_ready.exception()
                report = why.report if isinstance(why, ServerError) else report
                if not all(other.worker.died.done() for other in self.seats):
                    log.warning("A replica of %s did not start: %s", self._info.id, report.message)
                    await asyncio.wait([self.weights_ready])
            if not any(other.prepared for other in self.seats):
                self._ending = self._ending or asyncio.create_task(self._end(report))
                return
            if not succeeded(self.weights_ready):
                return
            log.warning("A replica of %s is started again.", self._info.id)
            await self._restart(number)

    async def _restart(self, number: int) -> None:
        seat, pause = self.seats[number], FIRST_PAUSE
        while True:
            try:
                worker = await self._launch(seat.spec)
                # What the last process had seen is forgotten.
                seat = self.seats[number] = Seat(seat.spec, worker)
                await asyncio.shield(worker.prompt_ready)
                worker.load_weights(self._memory_of(seat))
                await asyncio.shield(worker.weights_ready)
            except (OSError, ServerError) as error:
                log.error("A replica of %s did not start: %s", self._info.id, error)
                await seat.worker.stop(0.0)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                log.info("A replica of %s is there again.", self._info.id)
                return

    async def _end(self, report: ErrorReport, deadline: float | None = None) -> None:
        """End all replicas. With a `deadline`, requests may finish within that many seconds; without one, all are lost
        already."""
        if deadline is None:
            self.fail_load(ServerError.of(report))
            self.fail_all(report)
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await asyncio.gather(*(seat.worker.stop(deadline or 0.0) for seat in self.seats))
        self.fail_load(ServerError.of(report))
        self.fail_all(report)
        self.died.set_result(report)


def _in_the_cluster(
    spec: WorkerSpec, options: ModelOptions, cluster: Cluster
) -> tuple[WorkerSpec, WorkerSpec, int | None]:
    """The specs that start a replica in a cluster: one is refused where there is no room, the other waits for it; and
    the most memory of each, in bytes. Raises `ServerError("load_failed")`."""
    if options.machines:
        message = "cluster and machines cannot be used together: leave one of them out."
        raise ServerError("load_failed", message, "machines")
    spec = msgspec.structs.replace(spec, options={**spec.options, "cluster": cluster.address})
    if options.ranks > 1:  # the group finds its own places
        group = msgspec.structs.replace(spec, machine=CLUSTER)
        return group, group, options.memory_bytes
    need = need_of_each(spec, options, 1)
    first, again = (
        in_the_cluster(spec, cluster.address, need, within=within) for within in (PLACE_WITHIN, math.inf)
    )
    bound = options.memory_bytes or share_of([node.memory for node in cluster.nodes], need, options.replicas)
    return first, again, bound


def share_of(memories: Sequence[int], need: Need, replicas: int) -> int | None:
    """The bytes that each of so many replicas may fill, wherever it is placed: an equal part of its machine, among as
    many as that machine has room for. None if no machine has room.

    `memories` are bytes of the machines for workers. Only what a replica needs is reserved: the rest is for its caches.
    """
    rooms = [(memory, memory // max(1, need.memory)) for memory in memories]
    return min((memory // min(room, replicas) for memory, room in rooms if room), default=None)

"""Replicas of one model as worker processes, here or on other machines, which the pool leases as one worker.

A replica that dies is restarted while the others continue. The pool learns of a death only when no replica is left that
takes requests.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from pippin.config.options.model import ModelOptions, replicas_here, replicas_of
from pippin.config.options.ranges import bounds
from pippin.core.decoding import convert
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.models import EngineStats, ModelInfo, WorkerSpec
from pippin.core.tasks import Task
from pippin.runtime.cluster.commands import CLUSTER, in_the_cluster
from pippin.runtime.ranks.cluster import need_of_each, ranks_needed
from pippin.runtime.replicas.group import Seat, Spread
from pippin.runtime.workers.link import Mailbox
from pippin.runtime.workers.machines import elsewhere, is_here, shared_out
from pippin.runtime.workers.worker import Launcher, Worker

log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 1.0  # seconds before a replica that failed to start is retried; doubled each time
LONGEST_PAUSE: Final = 120.0
LOOK_EVERY: Final = 1.0  # seconds between checks of the replicas' load
DRAIN_LOOK: Final = 0.1
BUSY: Final = 0.75  # share of the requests that all replicas can run at once
EASY: Final = 0.5
BUSY_LOOKS: Final = 3  # in a row
EASY_LOOKS: Final = 60


@dataclass(frozen=True)
class ReplicaLauncher:
    """Starts one worker, or several if the model's options ask for replicas."""

    launch: Launcher

    async def __call__(self, spec: WorkerSpec) -> Worker:
        options = spec.options
        alone = (
            options.get("replicas", 1) == 1
            and not options.get("cluster")
            and not options.get("replica_machines")
        )
        return await self.launch(spec) if alone else await Replicas.start(spec, self.launch)


@dataclass(eq=False)
class Scale:
    """Decides how many replicas there should be, from the number of their requests.

    A replica is full with `max_num_seqs` requests. One is added when all together are fuller than `BUSY` for several
    checks in a row, and one is removed when the rest would be no fuller than `EASY` for many checks: starting a replica
    takes seconds to minutes, and its caches are lost when it ends.
    """

    least: int
    most: int
    each: int  # requests that one replica runs at once
    busy_looks: int = 0
    easy_looks: int = 0

    @classmethod
    def of(cls, options: ModelOptions) -> "Scale | None":
        """The scale for these options; None if the number of replicas is fixed."""
        least, most = bounds(options.replicas)
        return None if least == most else cls(least, most, options.max_num_seqs)

    def look(self, count: int, running: int) -> Literal["more", "fewer"] | None:
        """The change called for when `count` replicas have `running` requests."""
        self.busy_looks = self.busy_looks + 1 if running > BUSY * count * self.each else 0
        fewer = count - 1
        self.easy_looks = self.easy_looks + 1 if running <= EASY * fewer * self.each else 0
        if count < self.most and self.busy_looks >= BUSY_LOOKS:
            self.busy_looks = 0
            return "more"
        if count > self.least and self.easy_looks >= EASY_LOOKS:
            self.easy_looks = 0
            return "fewer"
        return None


@dataclass(eq=False)
class Process:
    """One replica, across restarts. What it has seen is forgotten with each process."""

    spec: WorkerSpec
    worker: Worker
    seat: Seat = field(init=False)
    leaving: bool = False  # takes no more requests, and ends once it has none
    keeping: "asyncio.Task[None] | None" = None

    def __post_init__(self) -> None:
        self.seat = Seat(self.worker)

    def replace(self, worker: Worker) -> None:
        self.worker = worker
        self.seat = Seat(worker)

    @property
    def is_here(self) -> bool:
        return self.spec.machine is None

    @property
    def prepared(self) -> bool:
        return not self.worker.died.done() and _succeeded(self.worker.prompt_ready)

    @property
    def loaded(self) -> bool:
        return self.prepared and _succeeded(self.worker.weights_ready)


class Replicas:
    """Several worker processes of one model, as one `Worker`."""

    def __init__(self, specs: list[WorkerSpec], launch: Launcher, workers: list[Worker]) -> None:
        loop = asyncio.get_running_loop()
        self._info = specs[0].info
        self._launch = launch
        self.processes = [Process(spec, worker) for spec, worker in zip(specs, workers, strict=True)]
        self._spread = Spread(self._info.id, self._seats)
        self._memory: int | None = None  # for each replica
        self._ending: asyncio.Task[None] | None = None
        self.prompt_ready: asyncio.Future[None] = loop.create_future()
        self.weights_ready: asyncio.Future[None] = loop.create_future()
        self.died: asyncio.Future[ErrorReport] = loop.create_future()
        self._tasks = [asyncio.create_task(self._begin())]
        for process in self.processes:
            process.keeping = asyncio.create_task(self._keep(process))
        options = convert(specs[0].options, ModelOptions)
        self._bound = options.memory_bytes if options.cluster else None
        self._scale: Scale | None = Scale.of(options)
        if self._scale is not None:
            self._tasks.append(asyncio.create_task(self._follow_load(self._scale)))

    @classmethod
    async def start(cls, spec: WorkerSpec, launch: Launcher) -> "Replicas":
        """Start all replicas; those on this machine share the memory and threads of `spec`."""
        options = convert(spec.options, ModelOptions)
        if options.cluster is not None and options.ranks == 1:
            ranks = await ranks_needed(spec, options)
            spec = msgspec.structs.replace(spec, options={**spec.options, "ranks": ranks})
            if ranks > 1:
                log.info(
                    "No machine of the cluster holds %s alone: it is split over %d ranks.",
                    spec.info.id,
                    ranks,
                )
        specs = await asyncio.to_thread(members, spec)  # reads files
        workers: list[Worker] = []
        try:
            for each in specs:
                workers.append(await launch(each))  # noqa: PERF401 (the started ones are ended below)
        except BaseException:
            await asyncio.gather(*(worker.stop(0.0) for worker in workers))
            raise
        return cls(specs, launch, workers)

    @property
    def pid(self) -> int | None:
        return next((process.worker.pid for process in self.processes if process.worker.pid), None)

    @property
    def info(self) -> ModelInfo:
        return next((each.worker.info for each in self.processes if each.prepared), self._info)

    @property
    def footprint(self) -> int:
        """Bytes of the replicas on this machine."""
        # A replica that is restarting will take as much as the others.
        sizes = [process.worker.footprint for process in self.processes if process.is_here]
        return max(sizes, default=0) * self._most_here

    @property
    def progress(self) -> tuple[int, int, str] | None:
        known = [process.worker.progress for process in self.processes if process.worker.progress]
        return min(known, key=lambda progress: progress[0], default=None)

    def load_weights(self, memory_bytes: int | None) -> None:
        """`memory_bytes` is this machine's, shared by the replicas here."""
        self._memory = self._share(memory_bytes)
        for process in self.processes:
            process.worker.load_weights(self._memory_of(process))

    def submit(self, id: str, task: Task, choices: int, mailbox: Mailbox | None = None) -> Mailbox:
        assert mailbox is None, "replicas are not nested"
        return self._spread.submit(id, task, choices)

    def cancel(self, id: str) -> None:
        self._spread.cancel(id)

    def fail_all(self, error: ErrorReport) -> None:
        self._spread.fail_all(error)

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        for process in self.processes:
            process.worker.clear_cache(prefixes_only=prefixes_only, disk=disk)
            process.seat.seen = type(process.seat.seen)()

    def reconfigure(self, options: dict[str, object]) -> None:
        if isinstance(share := options.get("memory_bytes"), int):
            self._memory = self._share(share)
        for process in self.processes:
            own = {name: value for name, value in options.items() if name != "memory_bytes"}
            if process.is_here and "memory_bytes" in options:
                own["memory_bytes"] = self._memory
            process.spec = msgspec.structs.replace(process.spec, options={**process.spec.options, **own})
            process.worker.reconfigure(own)

    async def stats(self) -> EngineStats:
        return EngineStats.total(
            await asyncio.gather(*(process.worker.stats() for process in self.processes))
        )

    async def stop(self, deadline: float) -> None:
        """As a worker's `stop`, for all replicas at once."""
        report = ErrorReport(kind="worker_died", message="The model was unloaded.")
        self._ending = self._ending or asyncio.create_task(self._end(report, deadline))
        await asyncio.shield(self._ending)

    def _seats(self) -> list[Seat]:
        """Seats of the replicas with loaded weights; if there are none, of those that can at least prepare a
        request."""
        staying = [process for process in self.processes if not process.leaving]
        loaded = [process.seat for process in staying if process.loaded]
        return loaded or [process.seat for process in staying if process.prepared]

    def _share(self, memory_bytes: int | None) -> int | None:
        return None if memory_bytes is None else memory_bytes // max(1, self._most_here)

    def _memory_of(self, process: Process) -> int | None:
        """Memory limit of a replica. Elsewhere it is the operator's, or None for whatever is free there."""
        return self._memory if process.is_here else self._bound

    @property
    def _most_here(self) -> int:
        """The most replicas that this machine may run."""
        here = sum(process.is_here for process in self.processes)
        return here if self._scale is None else max(here, self._scale.most)

    async def _begin(self) -> None:
        """Resolve the stages of the first load, once all replicas have reached each of them."""
        stages = (
            (self.prompt_ready, [process.worker.prompt_ready for process in self.processes]),
            (self.weights_ready, [process.worker.weights_ready for process in self.processes]),
        )
        try:
            for ours, theirs in stages:
                await asyncio.gather(*map(asyncio.shield, theirs))
                ours.set_result(None)
        except ServerError as error:
            self._fail_load(error)

    async def _follow_load(self, scale: "Scale") -> None:
        """Add a replica while all are busy, remove one while fewer would do; one at a time."""
        await asyncio.wait([self.weights_ready])
        while True:
            await asyncio.sleep(LOOK_EVERY)
            staying = [process for process in self.processes if not process.leaving]
            running = sum(process.seat.running for process in staying)
            settled = all(process.loaded for process in self.processes)
            match scale.look(len(staying), running) if settled else None:
                case "more":
                    await self._add()
                case "fewer":
                    await self._remove(min(staying[1:], key=lambda process: process.seat.running))
                case None:
                    pass

    async def _add(self) -> None:
        """Start one more replica, which takes requests once it is loaded. If it fails to start, it is retried only when
        the load calls for it again."""
        spec = self.processes[0].spec
        log.info("All replicas of %s are busy: one more is started.", self._info.id)
        try:
            worker = await self._launch(spec)
        except (OSError, ServerError) as error:
            log.error("A replica of %s did not start: %s", self._info.id, error)
            return
        process = Process(spec, worker)
        self.processes.append(process)
        try:
            await asyncio.shield(worker.prompt_ready)
            worker.load_weights(self._memory_of(process))
            await asyncio.shield(worker.weights_ready)
        except ServerError as error:
            log.error("A replica of %s did not start: %s", self._info.id, error)
            self.processes.remove(process)
            await worker.stop(0.0)
            return
        process.keeping = asyncio.create_task(self._keep(process))

    async def _remove(self, process: Process) -> None:
        """Let a replica finish its requests, then end it."""
        log.info("A replica of %s has little to do: it is ended.", self._info.id)
        process.leaving = True
        while process.seat.running and not process.worker.died.done():  # noqa: ASYNC110 (seats send no notifications)
            await asyncio.sleep(DRAIN_LOOK)
        if process.keeping is not None:
            process.keeping.cancel()
        await process.worker.stop(0.0)
        self.processes.remove(process)

    async def _keep(self, process: Process) -> None:
        """Restart the replica whenever it dies, until the last one has died or all are stopped."""
        while True:
            report = await asyncio.shield(process.worker.died)
            if process.leaving:
                return
            if not self.weights_ready.done():
                # The replica's own error says more than that its process has ended.
                why = process.worker.weights_ready.exception()
                report = why.report if isinstance(why, ServerError) else report
            if not any(other.prepared for other in self.processes):
                self._ending = self._ending or asyncio.create_task(self._end(report))
                return
            if not _succeeded(self.weights_ready):
                return
            log.warning("A replica of %s is started again.", self._info.id)
            await self._restart(process)

    async def _restart(self, process: Process) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                worker = await self._launch(process.spec)
            except (OSError, ServerError) as error:
                log.error("A replica of %s did not start: %s", self._info.id, error)
                await asyncio.sleep(LONGEST_PAUSE)
                continue
            process.replace(worker)
            try:
                await asyncio.shield(worker.prompt_ready)
                worker.load_weights(self._memory_of(process))
                await asyncio.shield(worker.weights_ready)
            except ServerError as error:
                log.error("A replica of %s did not start: %s", self._info.id, error)
                await worker.stop(0.0)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                log.info("A replica of %s is there again.", self._info.id)
                return

    def _fail_load(self, error: ServerError) -> None:
        for stage in (self.prompt_ready, self.weights_ready):
            if not stage.done():
                stage.set_exception(error)
                stage.exception()  # mark it retrieved: nobody may be waiting

    async def _end(self, report: ErrorReport, deadline: float | None = None) -> None:
        """End all replicas. With a `deadline`, requests may finish within that many seconds; without one, all are lost
        already."""
        if deadline is None:
            self._fail_load(ServerError.of(report))
            self.fail_all(report)
        tasks = [*self._tasks, *(process.keeping for process in self.processes if process.keeping)]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await asyncio.gather(*(process.worker.stop(deadline or 0.0) for process in self.processes))
        self._fail_load(ServerError.of(report))
        self.fail_all(report)
        self.died.set_result(report)


def members(spec: WorkerSpec) -> list[WorkerSpec]:
    """The spec for each replica. Raises `ServerError("load_failed")`."""
    options = convert(spec.options, ModelOptions)
    machines = replicas_of(options)
    if options.replica_machines and options.replicas not in (1, len(machines)):
        message = (
            f"{options.replicas} replicas and {len(machines)} machines were asked for: leave out --replicas."
        )
        raise ServerError("load_failed", message, "replicas")
    if options.cluster is not None:
        return _in_the_cluster(spec, options, options.cluster)
    shared = shared_out(spec, replicas_here(options))
    return [shared if is_here(each) else elsewhere(spec, each, options) for each in machines]


def _in_the_cluster(spec: WorkerSpec, options: ModelOptions, cluster: str) -> list[WorkerSpec]:
    """Raises `ServerError("load_failed")`."""
    ordinary = ModelOptions()
    for name in ("replica_machines", "machines"):
        if getattr(options, name) != getattr(ordinary, name):
            message = f"cluster and {name} cannot be used together: leave one of them out."
            raise ServerError("load_failed", message, name)
    if options.ranks == 1:
        own = in_the_cluster(spec, cluster, need_of_each(spec, options, 1))
    else:  # the group finds its own places
        own = msgspec.structs.replace(spec, machine=CLUSTER)
    return [own] * len(replicas_of(options))


def _succeeded(stage: "asyncio.Future[None]") -> bool:
    return stage.done() and not stage.cancelled() and stage.exception() is None

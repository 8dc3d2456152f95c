"""Decides which models are in memory: loads them on request, unloads them to make room or when idle.

Everything runs on one event loop. A slot is changed between two awaits, and every change wakes those who
wait for one.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, Protocol

import msgspec

from pippin.config.accelerator import told_budget
from pippin.config.options.model import ModelOptions, machines_of, ranks_here, replicas_here
from pippin.config.options.server import ServerOptions
from pippin.config.worker_environment import blas_threads
from pippin.core.errors import SHUTTING_DOWN, ErrorKind, ErrorReport, ServerError, without_folders
from pippin.core.models import (
    EngineStats,
    LoadState,
    ModelInfo,
    ModelKind,
    ModelState,
    WorkerSpec,
)
from pippin.runtime.cluster.asking import Clusters
from pippin.runtime.ranks.group import launch_ranks
from pippin.runtime.replicas import launch_replicas
from pippin.runtime.workers.death import STARTED_AGAIN
from pippin.runtime.workers.link import LOST
from pippin.runtime.workers.process import Child
from pippin.runtime.workers.supervisor import WorkerProcess
from pippin.runtime.workers.worker import Launcher, Worker

Estimate = Callable[[ModelInfo, ModelOptions], int]
"""Estimates the bytes that a model takes once loaded."""


class Models(Protocol):
    """What the pool needs of `pippin.catalog.Catalog`."""

    def resolve(self, name: str) -> ModelInfo:
        """The model that a name means. Raises `ServerError` for an unknown or ambiguous name."""
        ...

    def options_for(self, info: ModelInfo) -> ModelOptions: ...


FAILURE_KEPT: Final = 10.0  # seconds for which a failed load answers further requests; doubled each time
KILLS_BEFORE_FAILURE: Final = 3  # of loads
DEATHS_BEFORE_PAUSE: Final = 3
DEATHS_COUNTED: Final = 120.0  # seconds for which a death is remembered
LONGEST_PAUSE: Final = 120.0  # seconds
KEPT_FOR_OTHERS: Final = 4
"""One part in so many of a model's places is for other accounts, as soon as several accounts use the model."""


@dataclass(eq=False)
class Slot:
    """A model in the pool. Times use the pool's clock, except those that are displayed."""

    info: ModelInfo
    options: ModelOptions
    pinned: bool
    state: LoadState = "unloaded"
    stage: Literal["waiting", "starting", "weights"] | None = None
    # The requests of each account that hold this load or wait for it; while `closing`, new ones wait for the next load.
    claimants: Counter[str] = field(default_factory=Counter)
    several: bool = False  # two accounts have claimed it at the same time
    drains: int = 0  # callers that want it unloaded once its requests are done
    resident: bool = False  # its footprint is counted against the budget
    footprint: int = 0
    memory: int = 0  # bytes that the worker may take
    worker: Worker | None = None
    ready: "asyncio.Future[Worker] | None" = None  # resolves to the worker once it can prepare requests
    loading: "asyncio.Task[None] | None" = None
    unloading: "asyncio.Task[None] | None" = None
    last_used: float = 0.0
    last_used_wall: float | None = None
    loaded_at: float | None = None
    load_seconds: float | None = None
    idle_seconds: float | None = None  # from the last request, overrides the option
    idle_timer: asyncio.TimerHandle | None = None
    died: bool = False  # the next load is a restart
    restarts: int = 0
    loads: int = 0
    evictions: int = 0
    error: ErrorReport | None = None
    failures: int = 0  # failed loads since the last success
    refuse_until: float = 0.0
    deaths: list[float] = field(default_factory=list)  # since it last answered
    # Held by a request that may be what ends workers.
    suspects: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def claims(self) -> int:
        return self.claimants.total()

    @property
    def closing(self) -> bool:
        return self.drains > 0 or self.state == "unloading"

    @property
    def lost(self) -> ErrorReport | None:
        """The report of a worker that has died, until the slot is vacated for it."""
        return self.worker.died.result() if self.worker is not None and self.worker.died.done() else None

    def cut(self, message: str) -> None:
        """Fail all requests, which may be sent again."""
        if self.worker is not None:
            self.worker.requests.fail_all(ErrorReport(kind="overloaded", message=message, retry_after=5.0))

    def as_state(self) -> ModelState:
        return ModelState(
            id=self.info.id,
            kind=self.info.kind,
            state="unloading" if self.closing else self.state,
            stage=self.stage,
            progress=self.worker.progress if self.worker is not None else None,
            pinned=self.pinned,
            active=self.claims,
            last_used=self.last_used_wall,
            loaded_at=self.loaded_at,
            load_seconds=self.load_seconds,
            footprint=self.footprint if self.resident else 0,
            pid=self.worker.pid if self.worker is not None else None,
            restarts=self.restarts,
            loads=self.loads,
            evictions=self.evictions,
            error=self.error,
        )

    def check_failure(self, now: float) -> None:
        """Raise a recent failure again, instead of trying at once."""
        if now < self.refuse_until and self.error is not None:
            report = self.error
            raise ServerError(report.kind, report.message, retry_after=round(self.refuse_until - now, 1))

    @property
    def paused_until(self) -> float:
        """When the model may be started again after several deaths."""
        return self.refuse_until if self.error is not None and self.error.kind == "overloaded" else 0.0

    def check_queue(self, account: str) -> None:
        """Refuse a request beyond the model's batch and queue, or beyond its account's share. Raises `ServerError`."""
        self.several = self.several or bool(account and self.claimants.keys() - {account, ""})
        places = self.options.max_num_seqs + self.options.queue_size
        own, others = self.claimants[account], places // KEPT_FOR_OTHERS if self.several else 0
        if self.claims >= places or own >= places - others:
            whose = "" if self.claims >= places else f" for you: {own} of {places} places are yours"
            message = f"The queue of model {self.info.id!r} is full{whose}; try again later."
            raise ServerError("overloaded", message, retry_after=5.0)

    def load_failed(self, error: ErrorReport, now: float) -> None:
        """Remember a failed load; it is repeated to clients for longer each time, until a load succeeds."""
        self.error = error
        self.failures += 1
        self.refuse_until = now + min(FAILURE_KEPT * 2.0 ** (self.failures - 1), LONGEST_PAUSE)

    def worker_died(self, error: ErrorReport, now: float) -> None:
        """Remember a death. After several in a short time, pause before the next start, longer each time."""
        self.error = error
        self.died = True
        if error.blameless:
            return
        self.deaths = [death for death in self.deaths if now - death < DEATHS_COUNTED] + [now]
        if (excess := len(self.deaths) - DEATHS_BEFORE_PAUSE) >= 0:
            pause = min(FAILURE_KEPT * 2.0**excess, LONGEST_PAUSE)
            self.refuse_until = now + pause
            self.error = ErrorReport(
                kind="overloaded",
                message=f"The process of model {self.info.id!r} has died {len(self.deaths)} times within "
                f"{DEATHS_COUNTED:.0f} seconds; it is started again in {pause:.0f} seconds at the earliest. "
                + error.message.removesuffix(STARTED_AGAIN),
            )


def fits(new: Slot, beside: list[Slot], budget: int, options: ServerOptions) -> bool:
    """Whether a model has room beside resident ones: within a budget in bytes, and the most models, in all and of its
    kind."""
    most, most_of_kind = options.max_models, options.max_models_per_kind
    same = sum(each.info.kind == new.info.kind for each in beside)
    return (
        new.footprint + sum(each.footprint for each in beside) <= budget
        and (most is None or len(beside) < most)
        and (most_of_kind is None or same < most_of_kind)
    )


def victims(residents: list[Slot], suffices: Callable[[list[Slot]], bool]) -> list[Slot] | None:
    """The models to evict: idle before busy, least recently used first, no more than needed. `suffices` tells whether
    there is room beside those that stay.

    None if evicting every unpinned model would not be enough.
    """
    chosen: list[Slot] = []

    def enough(leaving: list[Slot]) -> bool:
        return suffices([each for each in residents if each not in leaving])

    movable = [resident for resident in residents if not resident.pinned]
    for resident in sorted(movable, key=lambda each: (each.claims > 0, each.last_used)):
        if enough(chosen):
            break
        chosen.append(resident)
    if not enough(chosen):
        return None
    # Later choices may have made earlier ones unnecessary; busy models are spared first.
    for resident in chosen[::-1]:
        rest = [each for each in chosen if each is not resident]
        if enough(rest):
            chosen = rest
    return chosen


class Clock:
    """The machine's clock; tests turn the hands of their own."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, callback)


class Changes:
    """Lets tasks wait until something in the pool changes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next = asyncio.Event()

    def tell(self) -> None:
        """Wake all waiters to check their condition again."""
        self._next.set()
        self._next = asyncio.Event()

    async def until(self, true: Callable[[], bool], deadline: float | None = None) -> bool:
        """Wait until `true()` holds, checking it after each change; False if the clock reaches `deadline` first."""
        while not true():
            left = None if deadline is None else deadline - self._clock.now()
            if left is not None and left <= 0:
                return False
            timer = None if left is None else self._clock.call_later(left, self.tell)
            try:
                await self._next.wait()
            finally:
                if timer is not None:
                    timer.cancel()
        return True


log = logging.getLogger(__name__)

MB: Final = 10**6  # bytes, as `pippin ps` counts them
LEAVE_WITHIN: Final = 10.0  # seconds for an idle worker's background writes
CALLED_OFF: Final[ErrorKind] = "cancelled"  # the error kind of a load that nobody wants any more
LOOK_AGAIN: Final = 1.0  # seconds
GIB: Final = 1 << 30


class Residency:
    """Loads and unloads the models of slots, with at most one load, one unload and one idle timer per slot. Models that
    need others to leave are served in order of arrival."""

    def __init__(
        self, options: ServerOptions, memory: int, clock: Clock, estimate: Estimate, launch: Launcher
    ) -> None:
        self.options = options
        self.memory = memory  # bytes that all models together may take
        self.clock = clock
        self.changes = Changes(clock)
        self.slots: dict[str, Slot] = {}  # by the model's id
        self._estimate = estimate
        self._launch = launch
        self._line: list[Slot] = []  # of loads that wait for memory

    def ready(self, slot: Slot) -> "asyncio.Future[Worker]":
        """A future for the worker, resolved once it can prepare requests; starts the load if none runs."""
        if slot.ready is None:
            slot.ready = asyncio.get_running_loop().create_future()
            slot.state, slot.stage = "loading", "waiting"
            slot.loading = asyncio.create_task(self._load(slot), name=f"load {slot.info.id}")
            # Not inside the task: a task that is cancelled before its first step never runs.
            slot.loading.add_done_callback(partial(self._load_ended, slot, self.clock.now()))
        return slot.ready

    async def unload(self, slot: Slot, deadline: float = LEAVE_WITHIN) -> None:
        """End the worker, or call off the load; returns once the memory is free. A second call joins the first."""
        if slot.loading is not None:
            slot.loading.cancel()
            await asyncio.wait({slot.loading})
        if slot.unloading is None and slot.worker is not None:
            self._begin_to_stop(slot, slot.worker, "unloaded", deadline)
        if slot.unloading is not None:
            await asyncio.shield(slot.unloading)

    def watch_idleness(self, slot: Slot) -> None:
        """Unload the slot once it has been idle for as long as its options, or the last request, say."""
        self.forget_idleness(slot)
        seconds = slot.options.idle_timeout if slot.idle_seconds is None else slot.idle_seconds
        watched = slot.state == "loaded" and slot.claims == 0 and not slot.pinned
        if watched and seconds is not None and seconds >= 0:
            slot.idle_timer = self.clock.call_later(seconds, partial(self._idle_long_enough, slot))

    def forget_idleness(self, slot: Slot) -> None:
        if slot.idle_timer is not None:
            slot.idle_timer.cancel()
            slot.idle_timer = None

    # Loading

    async def _load(self, slot: Slot) -> None:
        options, each = slot.options, self._estimate(slot.info, slot.options)
        slot.footprint = each * replicas_here(options) * ranks_here(options) // len(machines_of(options))
        await self._admit(slot)
        slot.stage = "starting"
        self.share_memory()
        worker = await self._launched(slot)
        worker.load_weights(slot.memory)
        await self._in_time(slot, worker.prompt_ready)
        slot.stage = "weights"
        if slot.ready is not None and not slot.ready.done():
            slot.ready.set_result(worker)
        await self._in_time(slot, worker.weights_ready)

    async def _prepare(self, slot: Slot) -> None:
        """The first stage of a load. It takes no memory for the model, so it may run while others make room."""
        worker = await self._launched(slot)
        await self._in_time(slot, worker.prompt_ready)

    async def _launched(self, slot: Slot) -> Worker:
        if slot.worker is None:
            slot.worker = await self._launch(self._spec(slot))
            slot.worker.died.add_done_callback(partial(self._on_death, slot, slot.worker))
        return slot.worker

    def _load_ended(self, slot: Slot, started: float, load: "asyncio.Task[None]") -> None:
        slot.loading = None
        if load.cancelled():
            message = f"Loading {slot.info.id!r} was called off."
            self._give_up(slot, ErrorReport(kind=CALLED_OFF, message=message))
            return
        match load.exception():
            case None:
                self._loaded(slot, self.clock.now() - started)
                if slot.worker is not None and slot.worker.died.done():  # died just as it became ready
                    self._on_death(slot, slot.worker, slot.worker.died)
            case ServerError() as error:
                self._give_up(slot, error.report)
            case error:
                reason = without_folders(f"{type(error).__name__}: {error}", slot.info.path)
                message = f"The model {slot.info.id!r} could not be loaded: {reason}."
                self._give_up(slot, ErrorReport(kind="load_failed", message=message))

    async def _in_time(self, slot: Slot, stage: "asyncio.Future[None]") -> None:
        """Wait for a stage of the load. Raises its error."""
        timeout = slot.options.load_timeout
        stage.add_done_callback(lambda _: self.changes.tell())
        if not await self.changes.until(stage.done, self.clock.now() + timeout):
            raise ServerError(
                "load_failed", f"Loading {slot.info.id!r} took more than {timeout:.0f} seconds."
            )
        stage.result()

    def _loaded(self, slot: Slot, seconds: float) -> None:
        assert slot.worker is not None
        slot.state, slot.stage = "loaded", None
        slot.footprint = slot.worker.footprint or slot.footprint
        slot.loaded_at, slot.load_seconds = self.clock.wall(), seconds
        slot.loads += 1
        slot.restarts += slot.died
        slot.died, slot.error, slot.failures, slot.refuse_until = False, None, 0, 0.0
        taken = f", {slot.footprint // MB} MB" if slot.footprint else ""
        log.info("Loaded %s in %.1f s%s.", slot.info.id, seconds, taken)
        self.watch_idleness(slot)
        self.changes.tell()
        self._trim(slot)
        self.share_memory()

    def _give_up(self, slot: Slot, error: ErrorReport) -> None:
        """Clean up after a load that did not complete."""
        ready, slot.ready = slot.ready, None
        slot.stage = None
        if error.kind == LOST:
            # Its process was killed: it is tried again at once, until it has been killed several times in a row.
            slot.failures += 1
            if slot.failures >= KILLS_BEFORE_FAILURE:
                error = msgspec.structs.replace(error, kind="load_failed")
        failed = error.kind == "load_failed"
        if failed:
            log.error("%s", error.message)
            slot.load_failed(error, self.clock.now())
        if ready is not None and not ready.done():
            ready.set_exception(ServerError.of(error))
            ready.exception()  # mark it retrieved: all waiters may have left
        if slot.worker is not None:
            slot.worker.requests.fail_all(error)
            self._begin_to_stop(slot, slot.worker, "failed" if failed else "unloaded", 0.0)
        else:
            self._vacate(slot, "failed" if failed else "unloaded")

    def _spec(self, slot: Slot) -> WorkerSpec:
        others = sum(each.resident and not each.drains for each in self.slots.values() if each is not slot)
        return WorkerSpec(
            info=slot.info,
            options=msgspec.to_builtins(slot.options),
            threads=blas_threads(others + 1),
            expected_bytes=slot.footprint or self._estimate(slot.info, slot.options),
            log_level=self.options.log_level,
            offline=self.options.offline,
        )

    # Making room

    async def _admit(self, slot: Slot) -> None:
        """Reserve `slot.footprint` bytes of the budget.

        Waits, or raises `ServerError`, according to the contention policy.
        """
        if slot.footprint > self.memory:
            raise ServerError(
                "load_failed",
                f"The model {slot.info.id!r} needs about {slot.footprint / GIB:.1f} GiB, more than the "
                f"{self.memory / GIB:.1f} GiB that models may take together. Raise memory_budget_gb or "
                "memory_percent, or choose a smaller quantisation.",
            )
        waits = self.options.contention_policy in ("wait_then_fail", "wait_then_preempt")
        deadline = self.clock.now() + self.options.contention_wait if waits else None
        self._line.append(slot)
        try:
            await self._in_line(slot, deadline)
        finally:
            self._line.remove(slot)
            self.changes.tell()

    async def _in_line(self, slot: Slot, deadline: float | None) -> None:
        if self._line[0] is not slot:
            if self.options.contention_policy == "fail" and not self._fits(slot, self._residents()):
                raise self._refusal(slot)
            if not await self.changes.until(lambda: self._line[0] is slot, deadline):
                raise self._refusal(slot)
        while not self._fits(slot, self._residents()):
            await self._make_room(slot, deadline)
        slot.resident = True

    async def _make_room(self, slot: Slot, deadline: float | None) -> None:
        leaving = victims(self._residents(), partial(self._fits, slot))
        if leaving is None:
            raise self._refusal(slot, "pinned models hold it")
        for victim in leaving:
            victim.drains += 1
        try:
            drained = await self._prepared_and_drained(slot, leaving, deadline)
            if self._fits(slot, self._residents()) or any(victim.pinned for victim in leaving):
                return  # the choice made before the wait may be outdated
            if not drained:
                # Loads are not preempted: models that preempt each other's loads would never serve anyone.
                await self.changes.until(
                    lambda: all(victim.stage is None or not victim.resident for victim in leaving)
                )
                for victim in leaving:
                    victim.cut(
                        f"The model {victim.info.id!r} was unloaded to make room for {slot.info.id!r}. "
                        "Please send the request again."
                    )
            slot.stage = "starting"
            log.info("Unloading %s for %s.", ", ".join(each.info.id for each in leaving), slot.info.id)
            resident = [victim for victim in leaving if victim.resident]
            for victim in resident:
                victim.evictions += 1
            await asyncio.gather(*(self.unload(victim) for victim in resident))
        finally:
            for victim in leaving:
                victim.drains -= 1
            self.changes.tell()

    async def _prepared_and_drained(self, slot: Slot, leaving: list[Slot], deadline: float | None) -> bool:
        """Start the new worker while the victims finish their requests; returns whether they finished.

        If the load fails in its first stage or the policy refuses it, the other task is cancelled; no model has left by
        then.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._prepare(slot), name=f"prepare {slot.info.id}")
                return await self._drained(slot, leaving, deadline)
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _drained(self, slot: Slot, leaving: list[Slot], deadline: float | None) -> bool:
        """Wait for the victims' requests if the policy waits at all; False if they are to be cut off."""

        def done() -> bool:
            return all(
                not victim.resident or (victim.claims == 0 and victim.stage is None) for victim in leaving
            )

        policy = self.options.contention_policy
        slot.stage = "waiting"
        if policy not in ("fail", "preempt"):
            await self.changes.until(lambda: done() or slot.lost is not None, deadline)
        if slot.lost is not None:
            raise ServerError.of(slot.lost)
        if done():
            slot.stage = "starting"
            return True
        if policy not in ("preempt", "wait_then_preempt"):
            raise self._refusal(slot)
        return False

    def _fits(self, slot: Slot, beside: list[Slot]) -> bool:
        return fits(slot, beside, self.memory, self.options)

    def _residents(self) -> list[Slot]:
        return [each for each in self.slots.values() if each.resident]

    def _refusal(self, slot: Slot, why: str = "busy models hold it") -> ServerError:
        return ServerError(
            "overloaded",
            f"There is no room in memory for the model {slot.info.id!r}: {why}. Try again later.",
            retry_after=max(1.0, self.options.contention_wait),
        )

    # Unloading

    def _begin_to_stop(self, slot: Slot, worker: Worker, after: LoadState, deadline: float) -> None:
        slot.worker, slot.ready, slot.state = None, None, "unloading"
        self.forget_idleness(slot)
        stopping = self._stop(slot, worker, after, deadline)
        slot.unloading = asyncio.create_task(stopping, name=f"stop {slot.info.id}")

    async def _stop(self, slot: Slot, worker: Worker, after: LoadState, deadline: float) -> None:
        await worker.stop(deadline)
        log.info("The process of %s has ended.", slot.info.id)
        slot.unloading = None
        self._vacate(slot, after)

    def _on_death(self, slot: Slot, worker: Worker, died: "asyncio.Future[ErrorReport]") -> None:
        if slot.worker is not worker or slot.loading is not None:
            self.changes.tell()
            return  # it was told to exit, or its load fails and reports that itself
        slot.worker, slot.ready = None, None
        self.forget_idleness(slot)
        slot.worker_died(died.result(), self.clock.now())
        self._vacate(slot, "failed")

    def _vacate(self, slot: Slot, state: LoadState) -> None:
        slot.state = state
        slot.resident, slot.footprint, slot.memory, slot.loaded_at = False, 0, 0, None
        self.share_memory()
        self.changes.tell()

    def _idle_long_enough(self, slot: Slot) -> None:
        if slot.drains:  # another caller wants it gone, and may yet change its mind
            slot.idle_timer = self.clock.call_later(LOOK_AGAIN, partial(self._idle_long_enough, slot))
        else:
            self._leave_if_idle(slot)

    def _leave_if_idle(self, slot: Slot) -> None:
        if slot.worker is not None and slot.state == "loaded" and not slot.claims and not slot.drains:
            self._begin_to_stop(slot, slot.worker, "unloaded", LEAVE_WITHIN)

    # Memory

    def _trim(self, newest: Slot) -> None:
        """Unload idle models while all together exceed the budget.

        That happens when a loaded model measures larger than its estimate.
        """
        for slot in sorted(self.slots.values(), key=lambda each: each.last_used):
            if self._free() >= 0:
                return
            if slot is not newest and not slot.pinned:
                self._leave_if_idle(slot)
        if self._free() < 0:
            log.warning("Models take %d MiB more than their budget.", -self._free() >> 20)

    def _free(self) -> int:
        """Bytes of the budget that no model takes; below 0 if they take more."""
        return self.memory - sum(each.footprint for each in self._residents())

    def share_memory(self) -> None:
        """Divide the free memory equally among the resident models, for their caches, and tell the running ones."""
        residents = self._residents()
        for slot in residents:
            share = slot.footprint + max(0, self._free()) // len(residents)
            share = min(share, slot.options.memory_bytes or share)
            if share != slot.memory:
                slot.memory = share
                if slot.worker is not None:
                    slot.worker.reconfigure({"memory_bytes": share})


@dataclass(eq=False)
class Lease:
    """The right to use a model's worker; released once."""

    pool: "Pool"
    slot: Slot
    worker: Worker
    account: str
    released: bool = False

    async def renew(self) -> None:
        """Take the model's next worker instead of one that is lost, and keep the place meanwhile. Raises `ServerError`,
        and the lease is released then."""
        try:
            worker = await self.pool.worker(self.slot, self.account, self)
        finally:
            self.release()
        self.worker, self.released = worker, False

    def release(self, keep_alive: float | None = None) -> None:
        """Give the lease back; a second call does nothing.

        `keep_alive`: seconds that the model stays loaded if no other request comes; below 0: for ever.
        """
        if not self.released:
            self.released = True
            self.pool.release(self.slot, self.account, keep_alive)


class Pool:
    """Leases models to requests: loads them, evicts others for them, and unloads idle ones."""

    def __init__(
        self,
        options: ServerOptions,
        catalog: Models,
        estimate: Estimate,
        memory: int,
        launcher: Launcher | None = None,
        clock: Clock | None = None,
        waiting: list[Child] | None = None,
    ) -> None:
        """`memory`: bytes that all models together may take. `waiting`: processes for the first workers here."""
        self._catalog = catalog
        self._clock = clock or Clock()
        own = partial(WorkerProcess.launch, waiting=waiting)
        launch = launcher or partial(launch_replicas, partial(launch_ranks, own), Clusters())
        self._residency = Residency(options, memory, self._clock, estimate, launch)
        self._slots, self._changes = self._residency.slots, self._residency.changes
        self._closed = False

    # Called by requests

    async def lease(self, info: ModelInfo, account: str = "") -> Lease:
        """Lease a model, loading it if need be; returns once its worker can prepare requests.

        `account`: whose place the lease takes; empty for the server itself. Raises `ServerError`."""
        slot = self._slot(info)
        return Lease(self, slot, await self.worker(slot, account), account)

    def release(self, slot: Slot, account: str, keep_alive: float | None) -> None:
        slot.claimants[account] -= 1
        slot.claimants = +slot.claimants  # accounts without any are forgotten
        if slot.state == "loaded" and slot.lost is None:  # it serves, so that it is in no crash loop
            slot.deaths.clear()
        self._touch(slot)
        slot.idle_seconds = keep_alive
        if slot.claims == 0:
            if slot.loading is not None and slot.stage == "waiting":
                slot.loading.cancel()  # it waits for room, and nobody wants the model any more
            self._residency.watch_idleness(slot)
        self._changes.tell()

    # Called by operators

    async def load(self, name: str) -> ModelState:
        """Load a model completely, at once even if a load has just failed. Raises `ServerError` if it fails."""
        slot = self._slot(self._catalog.resolve(name))
        slot.refuse_until = 0.0
        while True:
            lease = await self.lease(slot.info)
            try:
                await asyncio.shield(lease.worker.weights_ready)
                await self._changes.until(lambda: slot.loading is None)
                return slot.as_state()
            except ServerError as error:
                if error.report.kind != LOST:
                    raise
            finally:
                lease.release()

    async def unload(self, name: str) -> bool:
        """Unload a model once its requests are done, or after `drain_timeout`; False if it was not loaded."""
        slot = self._slots.get(self._catalog.resolve(name).id)
        if slot is None or not slot.resident:
            return False
        slot.drains += 1
        try:
            deadline = self._clock.now() + self._residency.options.drain_timeout
            if not await self._changes.until(lambda: slot.claims == 0, deadline):
                slot.cut(f"The model {slot.info.id!r} was unloaded. Send the request again to load it.")
            await self._residency.unload(slot)
        finally:
            slot.drains -= 1
            self._changes.tell()
        return True

    async def pin(self, name: str, pinned: bool) -> ModelState:
        """Protect a model from eviction and from idle unloading; it need not be loaded yet."""
        slot = self._slot(self._catalog.resolve(name))
        slot.pinned = pinned
        self._residency.watch_idleness(slot)
        self._changes.tell()
        return slot.as_state()

    def states(self) -> list[ModelState]:
        """Every model requested since the server started, in order of first request."""
        return [slot.as_state() for slot in self._slots.values()]

    def info(self, model: str) -> ModelInfo | None:
        """A loaded model's description by its worker, which is more accurate than the catalog's; looked up by the
        model's id."""
        slot = self._slots.get(model)
        return slot.worker.info if slot is not None and slot.worker is not None else None

    def last_loaded(self, kind: ModelKind | None = None) -> str | None:
        """The model loaded last, of this kind if one is given; else one that is being loaded.

        A scripted model counts as every kind.
        """
        # A copy: names are also looked up in threads, and the dict may grow.
        slots = list(self._slots.values())
        loaded = [
            slot
            for slot in slots
            if slot.worker is not None and (kind is None or slot.info.kind in (kind, "scripted"))
        ]
        return max(reversed(loaded), key=lambda slot: slot.loaded_at or 0.0).info.id if loaded else None

    async def stats(self, model: str) -> EngineStats:
        """A snapshot of the engine of the model with this id; zeros if it is not loaded."""
        slot = self._slots.get(model)
        return EngineStats() if slot is None or slot.worker is None else await slot.worker.stats()

    async def clear_cache(self, *, prefixes_only: bool = False, disk: bool = False) -> list[str]:
        """Clear the caches of all loaded models; returns their ids."""
        cleared = []
        for slot in self._slots.values():
            if slot.worker is not None and slot.state == "loaded":
                slot.worker.clear_cache(prefixes_only=prefixes_only, disk=disk)
                cleared.append(slot.info.id)
        return cleared

    async def adopt(self, options: ServerOptions) -> None:
        """Apply changed server options, and those of each model in use. Options that an engine can't change take effect
        at its next load."""
        self._residency.options, self._residency.memory = options, told_budget(options)
        for slot in self._slots.values():
            before = msgspec.structs.asdict(slot.options)
            slot.options = self._catalog.options_for(slot.info)
            after = msgspec.structs.asdict(slot.options)
            changes = {name: value for name, value in after.items() if value != before[name]}
            changes.pop("memory_bytes", None)  # a bound of its share
            if not changes:
                continue
            if "pinned" in changes:
                slot.pinned = slot.options.pinned
            if slot.worker is not None:
                slot.worker.reconfigure(changes)
            self._residency.watch_idleness(slot)
        self._residency.share_memory()
        self._changes.tell()

    async def close(self, deadline: float) -> None:
        """Grant no more leases, let the workers finish within `deadline` seconds, and end them all."""
        self._closed = True
        self._changes.tell()
        leaving = [slot for slot in self._slots.values() if slot.loading or slot.worker or slot.unloading]
        await asyncio.gather(*(self._residency.unload(slot, deadline) for slot in leaving))

    async def worker(self, slot: Slot, account: str, lost: Lease | None = None) -> Worker:
        """Claim the model's worker, in the place of a `lost` lease if there is one. Raises `ServerError`."""
        while True:
            if self._closed:
                raise ServerError.of(SHUTTING_DOWN)
            if slot.closing:
                if lost is not None:
                    lost.release()
                await self._changes.until(lambda: not slot.closing)
                continue
            if slot.lost is not None:
                await self._changes.until(lambda: slot.lost is None or slot.closing)
                continue
            if lost is not None and slot.paused_until > self._clock.now():
                await self._changes.until(lambda: slot.closing, slot.paused_until)
                continue
            slot.check_failure(self._clock.now())
            if lost is not None:
                lost.release()
            slot.check_queue(account)
            worker = await self._claimed(slot, account)
            if worker is not None:
                return worker

    async def _claimed(self, slot: Slot, account: str) -> Worker | None:
        """Claim the worker; None if its load was called off or its process killed, so that it may be tried again."""
        slot.claimants[account] += 1
        self._touch(slot)
        claimed = False
        try:
            worker = await asyncio.shield(self._residency.ready(slot))
            claimed = worker is slot.worker  # else its weights have failed since, or it was told to exit
            return worker if claimed else None
        except ServerError as error:
            if error.report.kind not in (CALLED_OFF, LOST):
                raise
            return None
        finally:
            if not claimed:
                self.release(slot, account, None)

    def _touch(self, slot: Slot) -> None:
        slot.last_used = self._clock.now()
        slot.last_used_wall = self._clock.wall()
        self._residency.forget_idleness(slot)

    def _slot(self, info: ModelInfo) -> Slot:
        slot = self._slots.get(info.id)
        if slot is None:
            options = self._catalog.options_for(info)
            slot = self._slots[info.id] = Slot(info, options, pinned=options.pinned)
        elif slot.ready is None:
            slot.info = info  # its files may have changed since the last load
        return slot

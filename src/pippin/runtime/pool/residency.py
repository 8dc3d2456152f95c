"""Getting a model into memory and out again: one load, one unload, one idle timer at a time for each slot."""

import asyncio
import logging
from functools import partial
from typing import Final

import msgspec

from pippin.config.options.server import ServerOptions
from pippin.config.worker_environment import blas_threads
from pippin.core.errors import ErrorKind, ErrorReport, ServerError
from pippin.core.models import LoadState, WorkerSpec
from pippin.core.traces import without_folders
from pippin.runtime.pool.admission import Admission
from pippin.runtime.pool.clock import Changes, Clock
from pippin.runtime.pool.overuse import Overuse
from pippin.runtime.pool.slot import Slot
from pippin.runtime.pool.source import Estimate
from pippin.runtime.workers.worker import Launcher, Worker

log = logging.getLogger(__name__)

LEAVE_WITHIN: Final = 10.0  # seconds for an idle worker's background writes
CALLED_OFF: Final[ErrorKind] = "cancelled"  # the kind of error of a load that nobody wants any more
LOOK_AGAIN: Final = 1.0  # seconds
SHARE_STEP: Final = 16  # a change of memory below one part in so many is not worth telling


class Residency:
    """Loads and unloads the models of slots, one load, one unload and one idle timer at a time for each."""

    def __init__(
        self,
        options: ServerOptions,
        estimate: Estimate,
        memory: int,
        slots: dict[str, Slot],
        launch: Launcher,
        changes: Changes,
        clock: Clock,
    ) -> None:
        self._options = options
        self._estimate = estimate
        self._slots = slots
        self._launch = launch
        self._changes = changes
        self._clock = clock
        self._admission = Admission(options, memory, slots, changes, clock, self._prepare, self.unload)
        self._overuse = Overuse(slots, changes, clock, self.unload, self.ready)
        self.last_loaded: str | None = None

    def adopt(self, options: ServerOptions, memory: int) -> None:
        self._options = options
        self._admission.adopt(options, memory)

    def close(self) -> None:
        """Start nothing by itself any more."""
        self._overuse.close()

    def ready(self, slot: Slot) -> "asyncio.Future[Worker]":
        """The worker once it can prepare requests; starts the load that leads there."""
        if slot.ready is None:
            slot.ready = asyncio.get_running_loop().create_future()
            slot.state, slot.stage = "loading", "waiting"
            slot.loading = asyncio.create_task(self._load(slot), name=f"load {slot.info.id}")
            # Not inside the task: one that is cancelled before its first step never runs.
            slot.loading.add_done_callback(partial(self._load_ended, slot, self._clock.now()))
        return slot.ready

    async def unload(self, slot: Slot, deadline: float = LEAVE_WITHIN) -> None:
        """End the worker, or call off the load; returns when the memory is free. A second call joins the first."""
        if slot.loading is not None:
            slot.loading.cancel()
            await asyncio.wait({slot.loading})
        if slot.unloading is None and slot.worker is not None:
            self._begin_to_stop(slot, slot.worker, "unloaded", deadline)
        if slot.unloading is not None:
            await asyncio.shield(slot.unloading)

    def call_off(self, slot: Slot) -> None:
        """Stop waiting for others to make room: nobody wants the model any more."""
        if slot.loading is not None and slot.stage == "waiting":
            slot.loading.cancel()

    def watch_idleness(self, slot: Slot) -> None:
        """Unload the slot once it has been idle for as long as its options, or the last request, say."""
        self.forget_idleness(slot)
        seconds = slot.options.idle_timeout if slot.idle_seconds is None else slot.idle_seconds
        watched = slot.state == "loaded" and slot.claims == 0 and not slot.pinned
        if watched and seconds is not None and seconds >= 0:
            slot.idle_timer = self._clock.call_later(seconds, partial(self._idle_long_enough, slot))

    def forget_idleness(self, slot: Slot) -> None:
        if slot.idle_timer is not None:
            slot.idle_timer.cancel()
            slot.idle_timer = None

    # The way in

    async def _load(self, slot: Slot) -> None:
        slot.footprint = self._estimate(slot.info, slot.options)
        await self._admission.admit(slot)
        slot.stage = "starting"
        self._share_memory()
        worker = await self._launched(slot)
        worker.load_weights(slot.options.memory_bytes or slot.memory)
        await self._two_stages(slot, worker)

    async def _prepare(self, slot: Slot) -> None:
        """The first stage of a load, which takes no memory for the model: it may pass while others make room."""
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
                self._loaded(slot, self._clock.now() - started)
                if slot.worker is not None and slot.worker.died.done():  # in the moment in which it was ready
                    self._on_death(slot, slot.worker, slot.worker.died)
            case ServerError() as error:
                self._give_up(slot, error.report)
            case error:
                reason = without_folders(f"{type(error).__name__}: {error}", slot.info.path)
                message = f"The model {slot.info.id!r} could not be loaded: {reason}."
                self._give_up(slot, ErrorReport(kind="load_failed", message=message))

    async def _two_stages(self, slot: Slot, worker: Worker) -> None:
        await self._in_time(slot, worker.prompt_ready)
        slot.stage = "weights"
        if slot.ready is not None and not slot.ready.done():
            slot.ready.set_result(worker)
        await self._in_time(slot, worker.weights_ready)

    async def _in_time(self, slot: Slot, stage: "asyncio.Future[None]") -> None:
        timeout = slot.options.load_timeout
        if not await self._changes.first(stage, timeout):
            raise ServerError(
                "load_failed", f"Loading {slot.info.id!r} took more than {timeout:.0f} seconds."
            )

    def _loaded(self, slot: Slot, seconds: float) -> None:
        assert slot.worker is not None
        slot.state, slot.stage = "loaded", None
        slot.footprint = slot.worker.footprint or slot.footprint
        slot.loaded_at, slot.load_seconds = self._clock.wall(), seconds
        slot.loads += 1
        slot.restarts += slot.died
        slot.died, slot.error, slot.failures, slot.refuse_until = False, None, 0, 0.0
        self.last_loaded = slot.info.id
        log.info("Loaded %s in %.1f s, %d MiB.", slot.info.id, seconds, slot.footprint >> 20)
        self.watch_idleness(slot)
        self._overuse.watch()
        self._changes.tell()
        self._trim(slot)
        self._share_memory()

    def _give_up(self, slot: Slot, error: ErrorReport) -> None:
        """End a load that did not come to its end."""
        ready, slot.ready = slot.ready, None
        slot.stage = None
        failed = error.kind == "load_failed"
        if failed:
            log.error("%s", error.message)
            slot.load_failed(error, self._clock.now())
        if ready is not None and not ready.done():
            ready.set_exception(ServerError.of(error))
            ready.exception()  # read here: all who waited may have left
        if slot.worker is not None:
            slot.worker.fail_all(error)
            self._begin_to_stop(slot, slot.worker, "failed" if failed else "unloaded", 0.0)
        else:
            self._vacate(slot, "failed" if failed else "unloaded")

    def _spec(self, slot: Slot) -> WorkerSpec:
        others = sum(each.resident and not each.drains for each in self._slots.values() if each is not slot)
        return WorkerSpec(
            info=slot.info,
            options=msgspec.to_builtins(slot.options),
            threads=blas_threads(others + 1),
            expected_bytes=slot.footprint,
            log_level=self._options.log_level,
            log_format=self._options.log_format,
        )

    # The way out

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
            self._changes.tell()
            return  # it was told to leave, or its load fails and says so itself
        slot.worker, slot.ready = None, None
        self.forget_idleness(slot)
        slot.worker_died(died.result(), self._clock.now())
        self._vacate(slot, "failed")

    def _vacate(self, slot: Slot, state: LoadState) -> None:
        slot.state = state
        slot.resident, slot.footprint, slot.memory, slot.loaded_at = False, 0, 0, None
        self._share_memory()
        self._changes.tell()

    def _idle_long_enough(self, slot: Slot) -> None:
        if slot.drains:  # someone else wants it gone, and may yet give that up
            slot.idle_timer = self._clock.call_later(LOOK_AGAIN, partial(self._idle_long_enough, slot))
        else:
            self._leave_if_idle(slot)

    def _leave_if_idle(self, slot: Slot) -> None:
        if slot.idle and slot.worker is not None:
            self._begin_to_stop(slot, slot.worker, "unloaded", LEAVE_WITHIN)

    # Memory

    def _trim(self, newest: Slot) -> None:
        """Let idle models leave where all take more than their budget.

        That happens when a model, once it is measured, is larger than was estimated.
        """
        for slot in sorted(self._slots.values(), key=lambda each: each.last_used):
            if self._admission.excess() <= 0:
                return
            if slot is not newest and not slot.pinned:
                self._leave_if_idle(slot)
        if self._admission.excess() > 0:
            log.warning("Models take %d MiB more than their budget.", self._admission.excess() >> 20)

    def _share_memory(self) -> None:
        """Divide what is free among the resident models, for their caches, and tell those that run."""
        for slot in self._slots.values():
            if not slot.resident or slot.options.memory_bytes is not None:
                continue
            share = self._admission.allowance(slot)
            if abs(share - slot.memory) * SHARE_STEP > slot.memory:
                slot.memory = share
                if slot.worker is not None:
                    slot.worker.reconfigure({"memory_bytes": share})

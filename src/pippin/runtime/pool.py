"""Which models are in memory: loaded when a request needs them, unloaded to make room or when idle.

All on one event loop; what changes a slot does so between two awaits, and wakes whoever waits for a change.
"""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from pippin.config.model_options import ModelOptions
from pippin.config.server_options import ServerOptions
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.models import EngineStats, ModelInfo, ModelState, WorkerSpec
from pippin.runtime.changes import Changes
from pippin.runtime.clock import Clock, SystemClock
from pippin.runtime.room import Room
from pippin.runtime.slot import Slot
from pippin.runtime.source import Estimate, ModelSource
from pippin.runtime.supervisor import Launcher, Worker, WorkerProcess

log = logging.getLogger(__name__)

LEAVE_WITHIN: Final = 10.0  # seconds for an idle worker's background writes


@dataclass(eq=False)
class Lease:
    """The right to use a model's worker; released once."""

    pool: "Pool"
    slot: Slot
    worker: Worker
    released: bool = False

    def release(self, keep_alive: float | None = None) -> None:
        """Give it back. `keep_alive`: seconds that the model stays loaded if nothing else comes; < 0: for ever."""
        if not self.released:
            self.released = True
            self.pool.release(self.slot, keep_alive)


class Pool:
    def __init__(
        self,
        options: ServerOptions,
        catalog: ModelSource,
        estimate: Estimate,
        memory: int,
        launcher: Launcher = WorkerProcess.launch,
        clock: Clock | None = None,
    ) -> None:
        """`memory`: bytes that all models together may take."""
        self._options = options
        self._catalog = catalog
        self._estimate = estimate
        self._launch = launcher
        self._clock = clock or SystemClock()
        self._slots: dict[str, Slot] = {}
        self._changes = Changes(self._clock)
        self._room = Room(options, memory, self._slots, self._changes, self._clock, self._unload)
        self._last_loaded: str | None = None
        self._closed = False

    # Requests

    async def lease(self, info: ModelInfo) -> Lease:
        """Claim a model, loading it if need be; returns when its worker can prepare requests."""
        slot = self._slot(info)
        while True:
            if self._closed:
                raise ServerError("overloaded", "The server is shutting down.", retry_after=10.0)
            slot.check(self._clock.now())
            if not slot.closing:
                break
            await self._changes.until(lambda: not slot.closing)
        slot.claims += 1
        self._touch(slot)
        try:
            return Lease(self, slot, await asyncio.shield(self._ready(slot)))
        except BaseException:
            self.release(slot, None)
            raise

    def release(self, slot: Slot, keep_alive: float | None) -> None:
        slot.claims -= 1
        self._touch(slot)
        if keep_alive is not None:
            slot.idle_seconds = keep_alive
        if slot.claims == 0:
            if slot.loading is not None and slot.stage == "waiting":
                slot.loading.cancel()  # nobody waits for it any more
            self._start_idle_timer(slot)
        self._changes.tell()

    # Operators

    async def load(self, name: str) -> ModelState:
        """Load a model to the end."""
        lease = await self.lease(self._catalog.resolve(name))
        try:
            await asyncio.shield(lease.worker.weights_ready)
        finally:
            lease.release()
        return lease.slot.as_state()

    async def unload(self, name: str) -> bool:
        """Unload a model once its requests are done, at most `drain_timeout`; False if it was not loaded."""
        slot = self._slots.get(self._catalog.resolve(name).id)
        if slot is None or not slot.resident:
            return False
        slot.draining = True
        try:
            await self._changes.until(lambda: slot.claims == 0, self._options.drain_timeout)
            if slot.claims > 0:
                self._cut(slot, f"The model {slot.info.id!r} was unloaded by the operator.")
            await self._unload(slot)
        finally:
            slot.draining = False
            self._changes.tell()
        return True

    async def pin(self, name: str, pinned: bool) -> ModelState:
        slot = self._slot(self._catalog.resolve(name))
        slot.pinned = pinned
        if slot.claims == 0:
            self._start_idle_timer(slot)
        self._changes.tell()
        return slot.as_state()

    def states(self) -> list[ModelState]:
        """Every model that has been in use or was tried, in order of first use."""
        return [slot.as_state() for slot in self._slots.values()]

    def info(self, id: str) -> ModelInfo | None:
        """What the worker told of a loaded model: truer than the catalog."""
        slot = self._slots.get(id)
        return slot.worker.info if slot is not None and slot.worker is not None else None

    def last_loaded(self) -> str | None:
        """The model that was loaded last, if it still is loaded; else another loaded one."""
        loaded = [id for id, slot in self._slots.items() if slot.resident and slot.state != "unloading"]
        return self._last_loaded if self._last_loaded in loaded else (loaded[-1] if loaded else None)

    async def stats(self, name: str) -> EngineStats:
        worker = self._worker(name)
        return EngineStats() if worker is None else await worker.stats()

    async def clear_cache(
        self, name: str | None = None, *, prefixes_only: bool = False, disk: bool = False
    ) -> list[str]:
        """Clear the caches of one model or of all that are loaded; the ids of those."""
        ids = list(self._slots) if name is None else [self._catalog.resolve(name).id]
        cleared = []
        for id in ids:
            slot = self._slots.get(id)
            if slot is not None and slot.worker is not None and slot.state == "loaded":
                slot.worker.clear_cache(prefixes_only=prefixes_only, disk=disk)
                cleared.append(id)
        return cleared

    async def reconfigure(self, name: str | None, changes: dict[str, Any]) -> None:
        """Change options of one model, or of all, while they run; the rest of them is read at the next load."""
        wanted = None if name is None else self._catalog.resolve(name).id
        for id, slot in self._slots.items():
            if wanted in (None, id):
                merged = msgspec.to_builtins(slot.options) | changes
                slot.options = msgspec.convert(merged, ModelOptions)
                slot.pinned = slot.options.pinned if "pinned" in changes else slot.pinned
                if slot.worker is not None:
                    slot.worker.reconfigure(changes)
                if slot.claims == 0:
                    self._start_idle_timer(slot)

    async def close(self, deadline: float) -> None:
        """Take no more, let every worker finish within `deadline` seconds, and end them all."""
        self._closed = True
        for slot in self._slots.values():
            if slot.loading is not None:
                slot.loading.cancel()
        await asyncio.gather(*(self._unload(slot, deadline) for slot in self._slots.values() if slot.resident))

    # Loading

    def _ready(self, slot: Slot) -> "asyncio.Future[Worker]":
        if slot.ready is None:
            slot.ready = asyncio.get_running_loop().create_future()
            slot.state, slot.stage = "loading", "waiting"
            if slot.error is not None and slot.error.kind in ("worker_died", "overloaded"):
                slot.restarts += 1
            slot.error = None
            slot.loading = asyncio.create_task(self._load(slot), name=f"load {slot.info.id}")
        return slot.ready

    async def _load(self, slot: Slot) -> None:
        started = self._clock.now()
        try:
            slot.footprint = self._estimate(slot.info, slot.options)
            await self._room.take(slot)
            slot.stage = "starting"
            worker = await self._launch(self._spec(slot))
            slot.worker = worker
            worker.died.add_done_callback(partial(self._on_death, slot, worker))
            await self._finish_load(slot, worker)
        except ServerError as error:
            await self._load_failed(slot, error.report)
        except asyncio.CancelledError:
            report = ErrorReport(kind="cancelled", message=f"Loading {slot.info.id!r} was called off.")
            await self._load_failed(slot, report)
            raise
        except OSError as error:
            message = f"The process of model {slot.info.id!r} could not be started: {error}."
            await self._load_failed(slot, ErrorReport(kind="load_failed", message=message))
        else:
            slot.load_seconds = self._clock.now() - started
            self._loaded(slot)
        finally:
            slot.loading = None
            slot.stage = None

    async def _finish_load(self, slot: Slot, worker: Worker) -> None:
        timeout = slot.options.load_timeout
        late = ServerError("load_failed", f"Loading {slot.info.id!r} took more than {timeout:.0f} seconds.")
        if not await self._changes.first(worker.prompt_ready, timeout):
            raise late
        slot.stage = "weights"
        if slot.ready is not None and not slot.ready.done():
            slot.ready.set_result(worker)
        if not await self._changes.first(worker.weights_ready, timeout):
            raise late

    def _loaded(self, slot: Slot) -> None:
        assert slot.worker is not None
        slot.state = "loaded"
        slot.footprint = slot.worker.footprint or slot.footprint
        slot.loaded_at = self._clock.wall()
        self._last_loaded = slot.info.id
        log.info("Loaded %s in %.1f s, %d MiB.", slot.info.id, slot.load_seconds, slot.footprint >> 20)
        self._touch(slot)
        if slot.claims == 0:
            self._start_idle_timer(slot)
        self._changes.tell()
        self._trim(slot)

    async def _load_failed(self, slot: Slot, error: ErrorReport) -> None:
        worker, slot.worker = slot.worker, None
        ready, slot.ready = slot.ready, None
        slot.state = "failed"
        if error.kind == "load_failed" or worker is not None:
            log.error("%s", error.message)
            slot.load_failed(error, self._clock.now())
        if error.kind == "cancelled":
            slot.state = "unloaded"
        if ready is not None and not ready.done():
            ready.set_exception(ServerError.of(error))
            ready.exception()  # read here: all who waited may have left
        if worker is not None:
            worker.fail_all(error)
            await worker.stop(0.0)
        self._vacate(slot)

    def _spec(self, slot: Slot) -> WorkerSpec:
        return WorkerSpec(
            info=slot.info,
            options=msgspec.to_builtins(slot.options),
            memory_bytes=slot.options.memory_bytes or self._room.allowance(slot),
            log_level=self._options.log_level,
            log_format=self._options.log_format,
        )

    # Unloading

    async def _unload(self, slot: Slot, deadline: float = LEAVE_WITHIN) -> None:
        """End the worker; a second call joins the first."""
        if slot.unloading is None:
            slot.unloading = asyncio.create_task(self._stop(slot, deadline), name=f"unload {slot.info.id}")
        await asyncio.shield(slot.unloading)

    async def _stop(self, slot: Slot, deadline: float) -> None:
        if slot.loading is not None:
            slot.loading.cancel()
        worker, slot.worker = slot.worker, None
        slot.state, slot.ready = "unloading", None
        self._stop_idle_timer(slot)
        if worker is not None:
            await worker.stop(deadline)
        slot.state, slot.unloading = "unloaded", None
        log.info("Unloaded %s.", slot.info.id)
        self._vacate(slot)

    def _vacate(self, slot: Slot) -> None:
        slot.resident, slot.footprint, slot.loaded_at = False, 0, None
        self._changes.tell()

    def _cut(self, slot: Slot, reason: str) -> None:
        if slot.worker is not None:
            message = f"{reason} Please send the request again."
            slot.worker.fail_all(ErrorReport(kind="overloaded", message=message, retry_after=5.0))

    def _on_death(self, slot: Slot, worker: Worker, died: "asyncio.Future[ErrorReport]") -> None:
        if slot.worker is not worker or slot.state != "loaded":
            return  # it was told to leave, or its load failed and says so itself
        slot.worker, slot.ready, slot.state = None, None, "unloaded"
        slot.worker_died(died.result(), self._clock.now())
        self._stop_idle_timer(slot)
        self._vacate(slot)

    def _trim(self, newest: Slot) -> None:
        """Measured, a model may be larger than estimated: idle ones leave for it, the rest is told."""
        idle = [slot for slot in self._slots.values() if slot.state == "loaded" and slot.claims == 0]
        for slot in sorted(idle, key=lambda each: each.last_used):
            if self._room.excess() <= 0:
                return
            if slot is not newest and not slot.pinned and not slot.closing:
                self._idle(slot)
        if self._room.excess() > 0:
            log.warning("Models take %d MiB more than their budget.", self._room.excess() >> 20)

    # Idleness

    def _start_idle_timer(self, slot: Slot) -> None:
        self._stop_idle_timer(slot)
        seconds = slot.options.idle_timeout if slot.idle_seconds is None else slot.idle_seconds
        if seconds is not None and seconds >= 0 and not slot.pinned and slot.state == "loaded":
            slot.idle_timer = self._clock.call_later(seconds, partial(self._idle, slot))

    def _stop_idle_timer(self, slot: Slot) -> None:
        if slot.idle_timer is not None:
            slot.idle_timer.cancel()
            slot.idle_timer = None

    def _idle(self, slot: Slot) -> None:
        if slot.claims == 0 and slot.state == "loaded" and not slot.closing:
            slot.state = "unloading"
            slot.unloading = asyncio.create_task(self._stop(slot, LEAVE_WITHIN))

    def _touch(self, slot: Slot) -> None:
        slot.last_used = self._clock.now()
        slot.last_used_wall = self._clock.wall()
        self._stop_idle_timer(slot)

    def _slot(self, info: ModelInfo) -> Slot:
        slot = self._slots.get(info.id)
        if slot is None:
            options = self._catalog.options_for(info)
            slot = self._slots[info.id] = Slot(info, options, pinned=options.pinned)
        return slot

    def _worker(self, name: str) -> Worker | None:
        slot = self._slots.get(self._catalog.resolve(name).id)
        return None if slot is None else slot.worker

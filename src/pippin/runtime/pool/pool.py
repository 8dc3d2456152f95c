"""Decides which models are in memory: loads them on request, unloads them to make room or when idle.

Everything runs on one event loop. A slot is changed between two awaits, and every change wakes those who wait for one.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from pippin.config.accelerator import model_memory
from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ServerOptions
from pippin.core.decoding import convert
from pippin.core.errors import SHUTTING_DOWN, ErrorReport, ServerError
from pippin.core.models import EngineStats, ModelInfo, ModelKind, ModelState
from pippin.runtime.pool.residency import CALLED_OFF, Residency
from pippin.runtime.pool.source import Estimate, ModelSource
from pippin.runtime.pool.state import Changes, Clock, Slot, SystemClock
from pippin.runtime.ranks.group import RankLauncher
from pippin.runtime.replicas.processes import ReplicaLauncher
from pippin.runtime.workers.link import LOST
from pippin.runtime.workers.supervisor import WorkerProcess
from pippin.runtime.workers.worker import Launcher, Worker


def memory_budget(options: ServerOptions) -> int:
    """Bytes that all models may take: the operator's setting, or a share of the memory that holds weights."""
    if options.memory_budget_gb is not None:
        return int(options.memory_budget_gb * 1e9)
    return model_memory(options.memory_percent)


@dataclass(eq=False)
class Lease:
    """The right to use a model's worker; released once."""

    pool: "Pool"
    slot: Slot
    worker: Worker
    account: str
    released: bool = False

    @property
    def options(self) -> ModelOptions:
        return self.slot.options

    async def renew(self) -> None:
        """Take the model's next worker instead of one that is lost, and keep the place meanwhile. Raises `ServerError`,
        and the lease is released then."""
        await self.pool.renew(self)

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
        catalog: ModelSource,
        estimate: Estimate,
        memory: int,
        launcher: Launcher | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`memory`: bytes that all models together may take."""
        self._options = options
        self._catalog = catalog
        self._clock = clock or SystemClock()
        self._slots: dict[str, Slot] = {}
        self._changes = Changes(self._clock)
        launch = launcher or ReplicaLauncher(RankLauncher(WorkerProcess.launch))
        self._residency = Residency(
            options, estimate, memory, self._slots, launch, self._changes, self._clock
        )
        self._closed = False

    # Called by requests

    async def lease(self, info: ModelInfo, account: str = "") -> Lease:
        """Lease a model, loading it if need be; returns once its worker can prepare requests.

        `account`: whose place the lease takes; empty for the server itself. Raises `ServerError`."""
        slot = self._slot(info)
        return Lease(self, slot, await self._worker(slot, account), account)

    async def renew(self, lease: Lease) -> None:
        """See `Lease.renew`."""
        try:
            worker = await self._worker(lease.slot, lease.account, lease)
        finally:
            lease.release()
        lease.worker, lease.released = worker, False

    def release(self, slot: Slot, account: str, keep_alive: float | None) -> None:
        slot.give_back(account)
        if slot.state == "loaded" and slot.lost is None:  # it serves, so that it is in no crash loop
            slot.deaths.clear()
        self._touch(slot)
        slot.idle_seconds = keep_alive
        if slot.claims == 0:
            self._residency.call_off(slot)
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
            if not await self._changes.until(lambda: slot.claims == 0, self._options.drain_timeout):
                self._cut(
                    slot, f"The model {slot.info.id!r} was unloaded. Send the request again to load it."
                )
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

    async def stats(self, name: str) -> EngineStats:
        """A snapshot of a model's engine; zeros if the model is not loaded."""
        slot = self._slots.get(name) or self._slots.get(self._catalog.resolve(name).id)
        return EngineStats() if slot is None or slot.worker is None else await slot.worker.stats()

    async def clear_cache(
        self, name: str | None = None, *, prefixes_only: bool = False, disk: bool = False
    ) -> list[str]:
        """Clear the caches of one model, or of all loaded ones; returns their ids."""
        cleared = []
        for slot in self._chosen(name):
            if slot.worker is not None and slot.state == "loaded":
                slot.worker.clear_cache(prefixes_only=prefixes_only, disk=disk)
                cleared.append(slot.info.id)
        return cleared

    async def adopt(self, options: ServerOptions) -> None:
        """Apply changed server options, and those of each model in use."""
        self._options = options
        self._residency.adopt(options, memory_budget(options))
        for slot in list(self._slots.values()):
            before = msgspec.structs.asdict(slot.options)
            after = msgspec.structs.asdict(self._catalog.options_for(slot.info))
            if changes := {name: value for name, value in after.items() if value != before[name]}:
                await self.reconfigure(slot.info.id, changes)
        self._changes.tell()

    async def reconfigure(self, name: str | None, changes: dict[str, Any]) -> None:
        """Change options of one model, or of all in use. Options that an engine can't change take effect at its next
        load."""
        for slot in self._chosen(name):
            slot.options = convert(msgspec.to_builtins(slot.options) | changes, ModelOptions)
            if "pinned" in changes:
                slot.pinned = slot.options.pinned
            if slot.worker is not None:
                slot.worker.reconfigure(changes)
            self._residency.watch_idleness(slot)

    async def close(self, deadline: float) -> None:
        """Grant no more leases, let the workers finish within `deadline` seconds, and end them all."""
        self._closed = True
        self._residency.close()
        self._changes.tell()
        leaving = [slot for slot in self._slots.values() if slot.loading or slot.worker or slot.unloading]
        await asyncio.gather(*(self._residency.unload(slot, deadline) for slot in leaving))

    async def _worker(self, slot: Slot, account: str, lost: Lease | None = None) -> Worker:
        """Claim the model's worker, in the place of a `lost` lease if there is one. Raises `ServerError`."""
        while True:
            self._check_open()
            if slot.closing:
                if lost is not None:
                    lost.release()
                await self._changes.until(lambda: not slot.closing)
                continue
            if slot.lost is not None:
                await self._changes.until(lambda: slot.lost is None or slot.closing)
                continue
            if lost is not None and (pause := slot.pause(self._clock.now())) > 0:
                await self._changes.until(lambda: slot.closing, pause)
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
        slot.claim(account)
        self._touch(slot)
        try:
            return await asyncio.shield(self._residency.ready(slot))
        except ServerError as error:
            self.release(slot, account, None)
            if error.report.kind not in (CALLED_OFF, LOST):
                raise
            return None
        except BaseException:
            self.release(slot, account, None)
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise ServerError.of(SHUTTING_DOWN)

    def _cut(self, slot: Slot, message: str) -> None:
        if slot.worker is not None:
            slot.worker.fail_all(ErrorReport(kind="overloaded", message=message, retry_after=5.0))

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

    def _chosen(self, name: str | None) -> list[Slot]:
        if name is None:
            return list(self._slots.values())
        slot = self._slots.get(self._catalog.resolve(name).id)
        return [] if slot is None else [slot]

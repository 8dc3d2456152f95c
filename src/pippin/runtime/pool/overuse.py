"""Handles models that exceed their memory plan: they first shed their caches, then are restarted.

This is the soft limit. `MemoryWatch` in `workers/supervisor.py` enforces the hard limit, at which a worker is killed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

import psutil

from pippin.core.errors import ServerError
from pippin.runtime.pool.state import Changes, Clock, Slot
from pippin.runtime.workers.worker import Worker

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 5.0  # seconds
FACTOR: Final = 1.25  # times the plan; the hard limit is 1.5 times
MARGIN: Final = 1 << 30  # bytes for Python, libraries and activations
SECONDS_BETWEEN: Final = 600.0
"""Between two restarts of a model for its memory: a model that exceeds its plan right away must still serve."""
PATIENCE: Final = 30.0
"""Seconds that new requests wait for the running ones to end, so that the model can be restarted."""


def soft_limit(plan: int) -> int:
    """Bytes beyond which a worker with this plan sheds its caches."""
    return int(plan * FACTOR) + MARGIN


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


class Overuse:
    """Checks the loaded models every few seconds while there are any."""

    def __init__(
        self,
        slots: Mapping[str, Slot],
        changes: Changes,
        clock: Clock,
        unload: Callable[[Slot], Awaitable[None]],
        ready: Callable[[Slot], "asyncio.Future[Worker]"],
        resident: Callable[[int], int] = resident_bytes,
    ) -> None:
        self._slots = slots
        self._changes = changes
        self._clock = clock
        self._unload = unload
        self._ready = ready
        self._resident = resident
        self._waits = False
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self) -> None:
        """Start checking, unless that has started."""
        if not self._waits:
            self._waits = True
            self._clock.call_later(LOOK_EVERY, self._look_later)

    def close(self) -> None:
        """Stop checking, and load nothing again."""
        self._closed = True
        for task in self._tasks:
            task.cancel()

    def _look_later(self) -> None:
        self._waits = False
        loaded = [slot for slot in self._slots.values() if slot.state == "loaded"]
        if loaded and not self._closed:
            self._start(self._look(loaded), "look at the memory of models")
            self.watch()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            worker = slot.worker
            if worker is None or worker.pid is None or slot.closing:
                continue
            used = max(self._resident(worker.pid), (await worker.stats()).active_bytes)
            if slot.worker is worker and slot.state == "loaded" and not slot.closing:
                self._judge(slot, worker, used)

    def _judge(self, slot: Slot, worker: Worker, used: int) -> None:
        plan = max(slot.memory, slot.footprint)
        if used <= soft_limit(plan):
            slot.shed = False
            return
        took = f"{slot.info.id} takes {used >> 20} MiB of memory, more than {FACTOR} of its plan of {plan >> 20} MiB"
        if not slot.shed:
            slot.shed = True
            slot.sheds += 1
            log.warning("%s and %d MiB: it sheds its caches.", took, MARGIN >> 20)
            worker.clear_cache(prefixes_only=False, disk=False)
        elif slot.renewed_at is None or self._clock.now() - slot.renewed_at >= SECONDS_BETWEEN:
            slot.renewed_at = self._clock.now()
            log.warning("%s, though it has shed its caches: it is started anew between requests.", took)
            self._start(self._renew(slot), f"renew {slot.info.id}")

    async def _renew(self, slot: Slot) -> None:
        """End the worker once its requests are done, while new ones wait, and load the model again. If they are not
        done within `PATIENCE`, a later check tries again: the model still serves, and the hard limit still holds."""
        slot.drains += 1
        try:
            if not await self._changes.until(lambda: slot.claims == 0, PATIENCE):
                log.warning("%s is not started anew now: its requests take long.", slot.info.id)
                return
            if slot.state != "loaded":
                return
            slot.renewals += 1
            await self._unload(slot)
        finally:
            slot.shed = False
            slot.drains -= 1
            self._changes.tell()
        if slot.as_state().state != "unloaded":  # another caller loads it already, or wants it gone
            return
        try:
            await self._ready(slot)
        except ServerError as error:
            log.warning("%s was not loaded again: %s", slot.info.id, error.report.message)

"""The hard limit of a worker's memory: what it may take at most, and what ends it beyond.

A worker plans its own memory (weights, KV cache and prefix cache together). The limit stands well above that plan:
nothing that works as it should meets it, and a fault that takes memory without end costs one worker, not the machine.
On Linux, where arrays lie in the host's memory, the kernel holds it (`RLIMIT_DATA`: an allocation beyond it fails).
Everywhere the resident memory is looked at several times a second, because Metal and CUDA reserve address space that
no limit of the kernel tells from memory; a worker above its limit is killed.
"""

import asyncio
import contextlib
import sys
from typing import Final

import psutil
from msgspec import Struct

from pippin.config.accelerator import accelerator

LOOK_EVERY: Final = 0.25  # seconds
FACTOR: Final = 1.5  # of the plan: activations, and pages that the allocator has not given back
MARGIN: Final = 2 << 30  # bytes for Python, libraries, media and texts in preparation
OF_THE_MACHINE: Final = 0.95  # the most that a limit may be, whatever the plan


class Excess(Struct, frozen=True):
    """A worker that took more than it may. Bytes."""

    resident: int
    limit: int


def limit_of(plan: int, total: int) -> int:
    """The most bytes that a worker with this plan may take, on a machine of `total` bytes."""
    return min(int(plan * FACTOR) + MARGIN, max(plan, int(total * OF_THE_MACHINE)))


class MemoryWatch:
    """Holds one process to a limit that follows its plan."""

    def __init__(self, pid: int, plan: int) -> None:
        self._pid = pid
        self._total = int(psutil.virtual_memory().total)
        self.limit = 0
        self._wanted = 0
        self.plan(plan)

    def plan(self, size: int) -> None:
        """Take a new plan, in bytes. A lower limit begins once the process has come below it."""
        self._wanted = limit_of(size, self._total)
        if self._wanted > self.limit:
            self._set(self._wanted)

    async def excess(self) -> Excess | None:
        """Wait until the process takes more than it may; None if it ends first."""
        while True:
            try:
                process = psutil.Process(self._pid)
                resident = int(process.memory_info().rss)
            except psutil.Error:
                return None
            if resident > self.limit:
                return Excess(resident, self.limit)
            if self._wanted < self.limit and resident < self._wanted:
                self._set(self._wanted)
            await asyncio.sleep(LOOK_EVERY)

    def _set(self, limit: int) -> None:
        self.limit = limit
        if sys.platform == "linux" and accelerator() == "cpu":
            import resource

            # A process that has just ended, or a kernel that forbids it: the resident memory is still looked at.
            with contextlib.suppress(OSError):
                _, hard = resource.prlimit(self._pid, resource.RLIMIT_DATA)
                allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
                resource.prlimit(self._pid, resource.RLIMIT_DATA, (allowed, hard))

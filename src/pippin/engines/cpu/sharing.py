"""Sets how many threads the BLAS takes on a machine that other programs use too.

OpenBLAS splits a product into equal parts, one for each of its threads, and spins until all are done. If another
program has one of the cores, each product waits for the part of the thread that is queued for that core: 8 clients
beside two busy loops on two cores got 0.03 of what they get on a quiet machine, where a fair share is about 0.5. One
thread alone never waits for another. So while the process's threads are queued for cores, the BLAS has one thread.
"""

import ctypes
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOOK_EVERY: Final = 1.0  # seconds
CROWDED: Final = 0.25  # of the time in which the process's threads could run, spent queued for a core
FREE: Final = 0.08


@dataclass(frozen=True)
class CoreTime:
    """The time of all threads of this process together, in seconds."""

    ran: float
    waited: float  # ready to run, while others had the cores


def core_time() -> CoreTime | None:
    """The time that Linux counts (`/proc/PID/task/TID/schedstat`, nanoseconds); None elsewhere."""
    ran = waited = 0
    try:
        for path in Path("/proc/self/task").glob("*/schedstat"):
            run, wait, _ = path.read_text().split()
            ran, waited = ran + int(run), waited + int(wait)
    except (OSError, ValueError):  # a thread that has ended meanwhile
        return None
    return CoreTime(ran / 1e9, waited / 1e9) if ran else None


class BlasThreads:
    """Gives the BLAS one thread while the cores are crowded, and all of its share once they are free again."""

    def __init__(
        self, most: int, use: Callable[[int], None], measure: Callable[[], CoreTime | None] = core_time
    ) -> None:
        """`most`: the worker's share of the cores. `use` tells the BLAS how many threads to take."""
        self._most = most
        self._use = use
        self._measure = measure
        self._looked = 0.0
        self._before: CoreTime | None = None
        self.now = most

    def look(self, moment: float | None = None) -> None:
        """Measure and adapt. Called between two steps, on the step thread: no product is under way then."""
        moment = time.monotonic() if moment is None else moment
        if self._most < 2 or moment - self._looked < LOOK_EVERY:
            return
        self._looked, before = moment, self._before
        self._before = measured = self._measure()
        if before is None or measured is None:
            return
        ran, waited = measured.ran - before.ran, measured.waited - before.waited
        if ran <= 0 or waited < 0:
            return
        share = waited / (ran + waited)
        wanted = 1 if share > CROWDED else self._most if share < FREE else self.now
        if wanted != self.now:
            self.now = wanted
            self._use(wanted)


def blas_watch(most: int | None) -> Callable[[], None]:
    """What is to be called between two steps, for the OpenBLAS that this process has loaded. Does nothing if there is
    none, or if threads are not shared out."""
    loaded = ctypes.CDLL(None) if sys.platform == "linux" else None
    use = getattr(loaded, "openblas_set_num_threads", None)
    if most is None or use is None:
        return lambda: None
    return BlasThreads(most, lambda count: use(ctypes.c_int(count))).look

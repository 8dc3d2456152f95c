"""How long a step would take on an idle machine, from wall-clock time and the CPU time of the worker on all cores.

On a GPU, and on a CPU that nobody else uses, wall-clock time is right. Where other processes want the cores, a step
waits for them, and its wall-clock time says little about the step; its CPU time does. CPU time alone would mislead on
an idle machine: work that runs on one of sixteen cores takes long, but little CPU time.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

REMEMBERED = 256  # steps of each kind
OF_LATE = 32  # newest steps
UNDISTURBED = 0.9  # quantile of the cores that steps of a kind keep busy: that of an undisturbed step
ONE_CORE = 0.9  # cores: a step that keeps fewer busy has waited for a core, since it computes all the time
# Share of the cores that steps could keep busy: if a tenth of the steps keeps fewer, other programs want them.
HINDERED = 0.85


class Instant(NamedTuple):
    """Seconds since some origin: wall-clock time, and CPU time of the process on all cores."""

    clock: float
    cores: float


Kind = tuple[int, int]
"""How many sequences a step computes, and how many tokens of all of them."""


def _last() -> deque[float]:
    return deque(maxlen=REMEMBERED)


@dataclass
class StepClock:
    """Times steps. `cores` reads the CPU time of the process; it is None where a device does the work. `threads`
    compute a step, and are the cores that it is assumed to keep busy until an undisturbed step was seen."""

    clock: Callable[[], float] = time.monotonic
    cores: Callable[[], float] | None = None
    threads: int = 1
    # Cores that steps kept busy, by kind; for the newest steps, as a share of what their kind can keep busy.
    _busy: dict[Kind, deque[float]] = field(default_factory=dict)
    _shares: deque[float] = field(default_factory=lambda: deque(maxlen=OF_LATE))

    def now(self) -> Instant:
        return Instant(self.clock(), 0.0 if self.cores is None else self.cores())

    def seconds(self, kind: Kind, began: Instant) -> float:
        """How long a step of this kind that began at `began` and ends now would have taken on an idle machine."""
        ended = self.now()
        passed, spent = ended.clock - began.clock, ended.cores - began.cores
        if self.cores is None or passed <= 0 or spent <= 0:
            return passed
        if self._hindered(kind, spent / passed):
            # The same number of cores for all kinds with as many sequences, so that CPU time alone compares them.
            return spent / self._cores_of(kind[0])
        return passed

    def _hindered(self, kind: Kind, busy: float) -> bool:
        """Whether other processes want the cores, given how many of them a step of this kind kept busy."""
        if busy < ONE_CORE:
            self._shares.append(0.0)
        else:
            known = self._busy.setdefault(kind, _last())
            known.append(busy)
            self._shares.append(busy / _below(known, UNDISTURBED))
        return _below(self._shares, 1 - UNDISTURBED) <= HINDERED

    def _cores_of(self, sequences: int) -> float:
        """Cores that undisturbed plain steps of this many sequences keep busy, or of the nearest number that was
        seen."""
        known = self._busy.get((sequences, sequences))
        if known is None:
            plain = [kind[0] for kind in self._busy if kind[0] == kind[1]]
            nearest = min(plain, key=lambda count: abs(count - sequences), default=None)
            known = None if nearest is None else self._busy[nearest, nearest]
        return max(1, self.threads) if known is None else _below(known, UNDISTURBED)


def _below(known: Iterable[float], share: float) -> float:
    """The quantile at `share`."""
    ordered = sorted(known)
    return ordered[int(share * (len(ordered) - 1) + 0.5)]

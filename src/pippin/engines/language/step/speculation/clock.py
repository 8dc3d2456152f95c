"""What a step would take with nobody else on the machine, by the clock and by the time of the worker on all cores.

On a GPU the clock tells, and on a CPU that nobody else uses. Where others want its cores, a step waits for them, for a
while that says nothing of the step; how much of the cores' time it takes does. That alone would mislead on a machine
without neighbours: what a step does on one core of sixteen takes long, and little of their time.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

REMEMBERED = 256  # steps of a kind
OF_LATE = 32  # steps
UNDISTURBED = 0.9  # of the steps of a kind keep fewer cores busy than one that nobody hinders
ONE_CORE = 0.9  # cores: a step that keeps fewer busy has waited for one, since it computes all the time
HINDERED = (
    0.85  # of the cores that steps could keep busy: where a tenth of them keeps fewer, others want the cores
)


class Instant(NamedTuple):
    """Seconds since some time, by the clock and of the process on all cores."""

    clock: float
    cores: float


Kind = tuple[int, int]
"""How many sequences a step computes, and how many tokens of all of them."""


def _last() -> deque[float]:
    return deque(maxlen=REMEMBERED)


@dataclass
class StepClock:
    """`cores` is None where the work is not the process's own, but a device's. `threads` are those that compute a step:
    the cores that it is taken to keep busy before any step was seen that nobody hindered."""

    clock: Callable[[], float] = time.monotonic
    cores: Callable[[], float] | None = None
    threads: int = 1
    # Cores that steps kept busy, by their kind; and of late, as a share of what their kind can.
    _busy: dict[Kind, deque[float]] = field(default_factory=dict)
    _shares: deque[float] = field(default_factory=lambda: deque(maxlen=OF_LATE))

    def now(self) -> Instant:
        return Instant(self.clock(), 0.0 if self.cores is None else self.cores())

    def seconds(self, kind: Kind, began: Instant) -> float:
        """What a step of this kind, which began then and ends now, would have taken alone."""
        ended = self.now()
        passed, spent = ended.clock - began.clock, ended.cores - began.cores
        if self.cores is None or passed <= 0 or spent <= 0:
            return passed
        if self._hindered(kind, spent / passed):
            # By the same number of cores for all kinds, so that they compare by the time of cores alone.
            return spent / self._cores_of(kind[0])
        return passed

    def _hindered(self, kind: Kind, busy: float) -> bool:
        """Whether others want the cores, of which a step of this kind kept so many busy."""
        if busy < ONE_CORE:
            self._shares.append(0.0)
        else:
            known = self._busy.setdefault(kind, _last())
            known.append(busy)
            self._shares.append(busy / _below(known, UNDISTURBED))
        return _below(self._shares, 1 - UNDISTURBED) <= HINDERED

    def _cores_of(self, sequences: int) -> float:
        """What plain steps of so many sequences keep busy when nobody hinders them, as far as that was seen."""
        known = self._busy.get((sequences, sequences))
        if known is None:
            plain = [kind[0] for kind in self._busy if kind[0] == kind[1]]
            nearest = min(plain, key=lambda count: abs(count - sequences), default=None)
            known = None if nearest is None else self._busy[nearest, nearest]
        return max(1, self.threads) if known is None else _below(known, UNDISTURBED)


def _below(known: Iterable[float], share: float) -> float:
    """What so many of these are below."""
    ordered = sorted(known)
    return ordered[int(share * (len(ordered) - 1) + 0.5)]

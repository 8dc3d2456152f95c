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
    """`cores` is None where the work is not the process's own, but a device's."""

    clock: Callable[[], float] = time.monotonic
    cores: Callable[[], float] | None = None
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
        known = self._busy.setdefault(kind, _last())
        known.append(spent / passed)
        self._shares.append(spent / passed / _below(known, UNDISTURBED))
        if _below(self._shares, 1 - UNDISTURBED) > HINDERED:
            return passed
        # By the same number of cores for all kinds, so that they compare by the time of cores alone.
        return spent / _below(self._busy.get((kind[0], kind[0]), known), UNDISTURBED)


def _below(known: Iterable[float], share: float) -> float:
    """What so many of these are below."""
    ordered = sorted(known)
    return ordered[int(share * (len(ordered) - 1) + 0.5)]

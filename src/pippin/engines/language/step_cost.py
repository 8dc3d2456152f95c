"""What a step takes, learned from steps: a fixed part and a part for each row that decodes, a fixed part and a part for
each prompt token computed beside them, a part for each earlier token that one of these looks back at, and a part for
each token whose keys and values are copied, when a known prefix begins a prompt or a prompt becomes a row. The fixed
parts are for reading the weights."""

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

REMEMBERED = 24  # steps of each kind
# As many as are taken to cost what the fixed part does, for want of knowledge.
ROWS, TOKENS, GLANCES, COPIES = 64, 256, 1 << 20, 1 << 12
STRAY = 2.0  # times what was expected: longer steps count as so long, for something else held them up
PARTS = 6
STALE = (
    4  # steps that a fit may miss where it only tells strays: one for each step would cost a token's own work
)
ENOUGH = 8  # steps after which there is something to expect


@dataclass(frozen=True)
class Step:
    rows: int  # that decoded
    tokens: int  # of prompts
    glances: float  # pairs of such a token and one before it in its prompt
    copies: int  # tokens of prefixes and rows
    seconds: float

    @property
    def features(self) -> tuple[float, ...]:
        computes = bool(self.tokens)
        prompts = computes, self.tokens / TOKENS, self.glances / GLANCES, self.copies / COPIES
        return bool(self.rows), self.rows / ROWS, *prompts


def _held() -> deque[Step]:
    return deque(maxlen=REMEMBERED)


@dataclass
class StepCost:
    """Least squares over the last steps of each kind, no part below zero."""

    _kinds: dict[tuple[bool, bool], deque[Step]] = field(default_factory=dict)
    _parts: NDArray[np.float64] = field(default_factory=lambda: np.zeros(PARTS))
    _unfitted: int = 0  # steps since the parts were fitted

    def observe(self, step: Step) -> None:
        kind = self._kinds.setdefault((step.rows > 0, step.tokens > 0), _held())
        if len(kind) >= ENOUGH:
            step = replace(step, seconds=min(step.seconds, STRAY * self._expected(step, STALE)))
        kind.append(step)
        self._unfitted += 1

    def decoding(self, rows: int) -> float:
        """Seconds that a step of so many rows takes by itself; 0 before any was measured."""
        return self._expected(Step(rows, 0, 0.0, 0, 0.0))

    def affordable(self, seconds: float, context: int) -> int | None:
        """Tokens after `context` others of a prompt that take so long, at most twice the most of late; None before any
        measurement."""
        computed = [step.tokens for kind, steps in self._kinds.items() if kind[1] for step in steps]
        if not computed:
            return None
        most = 2 * max(computed)
        fixed, token, glance = map(float, self._fitted()[2:5])
        rest = max(0.0, seconds - fixed)
        each = token / TOKENS + glance * context / GLANCES
        return int(rest / each) if each * most > rest else most if rest else 0

    def _expected(self, step: Step, stale: int = 0) -> float:
        return float(self._fitted(stale) @ np.array(step.features))

    def _fitted(self, stale: int = 0) -> NDArray[np.float64]:
        if self._unfitted > stale:
            self._parts = _fit([step for steps in self._kinds.values() for step in steps])
            self._unfitted = 0
        return self._parts


def _fit(steps: list[Step]) -> NDArray[np.float64]:
    """The parts in seconds. Of those that explain the steps equally well, the smallest."""
    parts = np.zeros(PARTS)
    features = np.array([step.features for step in steps])
    seconds = np.array([step.seconds for step in steps])
    kept = list(range(PARTS))
    while kept:
        found = np.linalg.lstsq(features[:, kept], seconds, rcond=1e-6)[0]
        if found.min() >= 0:
            parts[kept] = found
            break
        kept.pop(int(found.argmin()))
    return parts

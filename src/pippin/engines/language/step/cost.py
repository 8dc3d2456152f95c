"""What steps took: the expected cost of the next one, and the counts and rates that operators see."""

from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

REMEMBERED = 24  # steps of each kind
# Priors: so many of each are taken to cost as much as the fixed part, for want of measurements.
SEQUENCES, TOKENS, PAIRS, COPIES = 64, 256, 1 << 20, 1 << 12
OUTLIER = 2.0  # times the expected time: a longer step counts as this long, because something else delayed it
PARTS = 6
# How many steps a fit may lag where it only caps outliers: a fit for each step would cost as much as a token's work.
STALE = 4
ENOUGH = 8  # steps before there is an expectation


@dataclass(frozen=True)
class Step:
    """What a step did, and how long it took."""

    sequences: int  # that decoded
    tokens: int  # of prompts
    pairs: float  # of a prompt token and an earlier one of its prompt, to which it attends
    copies: int  # tokens of prefixes and sequences that were copied
    seconds: float

    @cached_property
    def features(self) -> tuple[float, ...]:
        prefills = bool(self.tokens)
        prompts = prefills, self.tokens / TOKENS, self.pairs / PAIRS, self.copies / COPIES
        return bool(self.sequences), self.sequences / SEQUENCES, *prompts


def _last_steps() -> deque[Step]:
    return deque(maxlen=REMEMBERED)


@dataclass
class StepCost:
    """Predicts the time of a step: least squares over the last steps of each kind, no part below zero.

    The kind of a step is whether it decoded and whether it prefilled.
    """

    _steps: dict[tuple[bool, bool], deque[Step]] = field(default_factory=lambda: defaultdict(_last_steps))
    _parts: NDArray[np.float64] = field(default_factory=lambda: np.zeros(PARTS))
    _unfitted: int = 0  # steps since the last fit

    def observe(self, step: Step) -> None:
        """Learn from a step."""
        steps = self._steps[step.sequences > 0, step.tokens > 0]
        if len(steps) >= ENOUGH:
            step = replace(step, seconds=min(step.seconds, OUTLIER * self._expected(step, STALE)))
        steps.append(step)
        self._unfitted += 1

    def decoding(self, sequences: int) -> float:
        """Seconds that a step of `sequences` sequences takes without prompts; 0 before any measurement."""
        return self._expected(Step(sequences, 0, 0.0, 0, 0.0))

    def affordable(self, seconds: float, context: int) -> int | None:
        """How many tokens of a prompt, after `context` others, take `seconds`: at most twice the most of late. None
        before any measurement."""
        prefilled = [
            step.tokens for (_, prefills), steps in self._steps.items() if prefills for step in steps
        ]
        if not prefilled:
            return None
        most = 2 * max(prefilled)
        fixed, token, pair = map(float, self._fitted()[2:5])
        rest = max(0.0, seconds - fixed)
        each = token / TOKENS + pair * context / PAIRS
        return int(rest / each) if each * most > rest else most if rest else 0

    def _expected(self, step: Step, stale: int = 0) -> float:
        return float(self._fitted(stale) @ np.array(step.features))

    def _fitted(self, stale: int = 0) -> NDArray[np.float64]:
        if self._unfitted > stale:
            self._parts = _fit(list(chain.from_iterable(self._steps.values())))
            self._unfitted = 0
        return self._parts


def _fit(steps: list[Step]) -> NDArray[np.float64]:
    """The parts in seconds: among those that explain the steps equally well, the smallest."""
    parts = np.zeros(PARTS)
    known = np.array([(*step.features, step.seconds) for step in steps])
    features, seconds = known[:, :-1], known[:, -1]
    kept = list(range(PARTS))
    while kept:
        found = np.linalg.lstsq(features[:, kept], seconds, rcond=1e-6)[0]
        if found.min() >= 0:
            parts[kept] = found
            break
        kept.pop(int(found.argmin()))
    return parts


SMOOTHING = 0.2


@dataclass
class Counters:
    """Counts since the load, and smoothed rates."""

    steps: int = 0
    prompt_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    draft_seconds: float = 0.0
    weight_bytes: int = 0
    agreement: str = ""
    generation_tps: float = 0.0
    prompt_tps: float = 0.0
    _completed_before: int = 0

    def step_done(self, seconds: float, prompt_tokens: int, completion_tokens: int, *, decoded: bool) -> None:
        """Note a step. `completion_tokens` counts since the load."""
        drawn = completion_tokens - self._completed_before
        self._completed_before = completion_tokens
        if seconds <= 0:
            return
        if decoded:
            self.generation_tps += SMOOTHING * (drawn / seconds - self.generation_tps)
        elif prompt_tokens:
            self.prompt_tps += SMOOTHING * (prompt_tokens / seconds - self.prompt_tps)

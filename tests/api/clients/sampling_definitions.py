"""What the sampling parameters mean, written down in numpy and in plain loops: tokens that stay, logits that fall."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float64]
Probabilities = NDArray[np.float64]


def softmax(logits: Logits) -> Probabilities:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


@dataclass(frozen=True)
class Filtered:
    """A request's parameters, and the distribution that it must be drawn from. `blurred`: tokens so near the border
    that rounding may put them on its other side."""

    parameters: dict[str, Any]
    expected: Probabilities
    blurred: frozenset[int] = frozenset()


def _kept(probabilities: Probabilities, tokens: Sequence[int]) -> Probabilities:
    left = np.zeros_like(probabilities)
    left[list(tokens)] = probabilities[list(tokens)]
    return np.asarray(left / left.sum())


@dataclass(frozen=True)
class Border:
    """The place from 4 to 9 at which the sorted logits fall most: filters that cut there cut the same tokens on every
    machine."""

    order: NDArray[np.intp]
    place: int  # so many are above it

    @classmethod
    def of(cls, logits: Logits) -> "Border":
        order = np.argsort(-logits)
        falls = logits[order[3:9]] - logits[order[4:10]]
        return cls(order, 4 + int(np.argmax(falls)))

    @property
    def best(self) -> list[int]:
        return [int(token) for token in self.order[: self.place]]

    def between(self, values: NDArray[np.float64]) -> float:
        """A value between the last above and the first below it."""
        above, below = values[self.order[self.place - 1]], values[self.order[self.place]]
        return float((above + below) / 2)


def top_k(logits: Logits) -> Filtered:
    border = Border.of(logits)
    return Filtered({"top_k": border.place}, _kept(softmax(logits), border.best))


def top_p(logits: Logits) -> Filtered:
    border, chances = Border.of(logits), softmax(logits)
    mass = chances[border.best].sum() - chances[border.best[-1]] / 2
    return Filtered({"top_p": float(mass)}, _kept(chances, border.best))


def min_p_of_heated(logits: Logits) -> Filtered:
    """The temperature comes first: shares of the best are those after it."""
    border, chances = Border.of(logits), softmax(logits / 1.6)
    share = float(border.between(chances) / chances.max())
    return Filtered({"min_p": share, "temperature": 1.6}, _kept(chances, border.best))


def top_n_sigma(logits: Logits) -> Filtered:
    border = Border.of(logits)
    deviations = (logits.max() - border.between(logits)) / logits.std()
    return Filtered({"top_n_sigma": float(deviations)}, _kept(softmax(logits), border.best))


def typical_p(logits: Logits) -> Filtered:
    """Tokens whose surprise is nearest the entropy, up to a mass: the likeliest are not among them."""
    chances = softmax(logits)
    surprise = -np.log(chances)
    distance = np.abs(surprise - (chances * surprise).sum())
    order = np.argsort(distance)
    last = int(np.searchsorted(np.cumsum(chances[order]), 0.3))
    near = np.abs(distance - distance[order[last]]) < 0.05
    expected = _kept(chances, order[: last + 1].tolist())
    return Filtered({"typical_p": 0.3}, expected, frozenset(np.flatnonzero(near).tolist()))


def xtc(logits: Logits, probability: float = 1.0, protected: Sequence[int] = ()) -> Filtered:
    """All tokens above the threshold go but the least likely of them; line ends and ends of text always stay."""
    border, chances = Border.of(logits), softmax(logits)
    gone = [token for token in border.best[:-1] if token not in protected]
    left = [token for token in range(len(logits)) if token not in gone]
    mixed = probability * _kept(chances, left) + (1 - probability) * chances
    parameters = {"xtc_probability": probability, "xtc_threshold": border.between(chances)}
    return Filtered(parameters, mixed)


def biased(logits: Logits) -> Filtered:
    """The best token is banned, and the third is lifted."""
    first, _, third = Border.of(logits).order[:3].tolist()
    moved = logits.copy()
    moved[first] -= 100
    moved[third] += 2
    return Filtered({"logit_bias": {str(first): -100, str(third): 2}}, softmax(moved))


def cold(logits: Logits) -> Filtered:
    return Filtered({"temperature": 0.4}, softmax(logits / 0.4))


FILTERS: dict[str, Callable[[Logits], Filtered]] = {
    "temperature": cold,
    "top_k": top_k,
    "top_p": top_p,
    "min_p": min_p_of_heated,
    "top_n_sigma": top_n_sigma,
    "typical_p": typical_p,
    "xtc": xtc,
    "xtc of a half": lambda logits: xtc(logits, 0.5),
    "logit_bias": biased,
}


@dataclass(frozen=True)
class History:
    prompt: list[int]
    answer: list[int] = field(default_factory=list)

    def latest(self, context: int | None) -> list[int]:
        """Of prompt and answer."""
        whole = self.prompt + self.answer
        return whole if context is None else whole[max(0, len(whole) - context) :]

    def latest_said(self, context: int | None) -> list[int]:
        """Of the answer alone."""
        return self.answer if context is None else self.answer[max(0, len(self.answer) - context) :]


Penalty = Callable[[Logits, History], Logits]


def repetition(by: float, context: int | None = None) -> Penalty:
    def apply(logits: Logits, history: History) -> Logits:
        lowered = logits.copy()
        for token in set(history.latest(context)):
            lowered[token] = logits[token] / by if logits[token] > 0 else logits[token] * by
        return lowered

    return apply


def presence(by: float, context: int | None = None) -> Penalty:
    def apply(logits: Logits, history: History) -> Logits:
        lowered = logits.copy()
        lowered[list(set(history.latest_said(context)))] -= by
        return lowered

    return apply


def frequency(by: float, context: int | None = None) -> Penalty:
    def apply(logits: Logits, history: History) -> Logits:
        lowered = logits.copy()
        for token in history.latest_said(context):
            lowered[token] -= by
        return lowered

    return apply

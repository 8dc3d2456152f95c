"""Which tokens of a prompt are computed: whole chunks of it, by the importance of their tokens. No arrays of MLX's."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

CHUNK: Final = 32
"""Tokens that are kept or left out together: words mean little without those around them."""

SMOOTHED: Final = 13
"""Tokens whose importance is averaged, around each, before chunks are compared."""


@dataclass(frozen=True)
class Share:
    """How much of a prompt is kept: fractions from 0 to 1."""

    keep: float
    backbone: float = 0.0  # of what is kept, the part that is spread evenly over the prompt


class Selection:
    """The tokens of a prompt that are computed. Tokens that come after the prompt are all kept."""

    def __init__(self, spans: Sequence[range], length: int) -> None:
        """`spans`: of positions, ascending and without those that touch; the last one ends with the prompt, which
        has `length` tokens."""
        self.spans = tuple(spans)
        self.length = length
        self.kept = sum(map(len, spans))
        self.left_out = length - self.kept
        self._starts = [0]  # of each span, among the kept tokens
        for span in spans[:-1]:
            self._starts.append(self._starts[-1] + len(span))

    def of(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """What is computed of tokens that begin with the prompt."""
        found = [token for span in self.spans for token in tokens[span.start : span.stop]]
        return (*found, *tokens[self.length :])

    def position(self, index: int) -> int:
        """Where in the prompt, or behind it, the kept token with this index stands."""
        number = bisect_right(self._starts, index) - 1
        return self.spans[number].start + index - self._starts[number]

    def exact(self, computed: int) -> int:
        """How many of so many computed tokens, from the first on, have the keys and values that they have in the whole
        prompt: those before the first gap. Others may start from these alone."""
        first = self.spans[0]
        before = len(first) if first.start == 0 else 0
        return min(computed, before) if self.left_out else computed


def choose(importance: NDArray[np.float32], share: Share, known: int = 0) -> Selection:
    """Keep a share of the tokens after the first `known`, which are all kept, as is the chunk that ends the prompt.

    `importance` is that of each token. What is kept are chunks: those spread evenly first, then the most important.
    """
    length = len(importance)
    edges = np.arange(known, length, CHUNK)
    smooth = _smoothed(importance)
    sizes = np.diff(np.append(edges, length))
    means = np.add.reduceat(smooth, edges) / sizes
    budget = max(1, min(len(edges), round(share.keep * len(edges))))
    kept = np.zeros(len(edges), dtype=bool)
    kept[-1] = True
    spread = round(share.backbone * budget)
    if spread:
        kept[np.linspace(0, len(edges) - 1, spread).round().astype(int)] = True
    rest = np.where(kept, -np.inf, means)
    wanted = max(budget - int(kept.sum()), 0)
    # Of chunks that are equally important the first: the same prompt has the same selection everywhere.
    kept[np.argsort(-rest, kind="stable")[:wanted]] = True
    return Selection(_spans(kept, edges, sizes, known), length)


def _smoothed(importance: NDArray[np.float32]) -> NDArray[np.float64]:
    """The mean around each token, of as many as there are towards the ends."""
    window = np.ones(SMOOTHED)
    sums = np.convolve(importance.astype(np.float64), window, mode="full")
    counts = np.convolve(np.ones(len(importance)), window, mode="full")
    middle = slice(SMOOTHED // 2, SMOOTHED // 2 + len(importance))
    means: NDArray[np.float64] = (sums / counts)[middle]
    return means


def _spans(
    kept: NDArray[np.bool_], edges: NDArray[np.int64], sizes: NDArray[np.int64], known: int
) -> list[range]:
    found = [range(known)] if known else []
    for start, size, chosen in zip(edges.tolist(), sizes.tolist(), kept.tolist(), strict=True):
        if not chosen:
            continue
        if found and found[-1].stop == start:
            found[-1] = range(found[-1].start, start + size)
        else:
            found.append(range(start, start + size))
    return found

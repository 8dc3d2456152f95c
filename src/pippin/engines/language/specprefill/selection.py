"""Chooses the tokens of a prompt to compute: whole chunks, by the importance of their tokens. No MLX arrays."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

CHUNK: Final = 32
"""Tokens that are kept or left out together: words mean little without their neighbours."""

SMOOTHED: Final = 13
"""The window of tokens over which importance is averaged before chunks are compared."""


@dataclass(frozen=True)
class Share:
    """How much of a prompt is kept: fractions from 0 to 1."""

    keep: float
    backbone: float = 0.0  # the part of the kept tokens that is spread evenly over the prompt


class Selection:
    """The tokens of a prompt that are computed. Tokens that come after the prompt are all kept."""

    def __init__(self, spans: Sequence[range], length: int) -> None:
        """`spans` of positions are ascending and do not touch; the last one ends with the prompt, which has `length`
        tokens."""
        self.spans = tuple(spans)
        self.length = length
        self.kept = sum(map(len, spans))
        self.left_out = length - self.kept
        self._starts = [0]  # of each span, among the kept tokens
        for span in spans[:-1]:
            self._starts.append(self._starts[-1] + len(span))

    def of(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The tokens to compute out of `tokens`, which begin with the prompt."""
        found = [token for span in self.spans for token in tokens[span.start : span.stop]]
        return (*found, *tokens[self.length :])

    def position(self, index: int) -> int:
        """The position, in the prompt or after it, of the kept token with this index."""
        number = bisect_right(self._starts, index) - 1
        return self.spans[number].start + index - self._starts[number]

    def exact(self, computed: int) -> int:
        """How many of the first `computed` tokens have the keys and values that they would have in the whole prompt:
        those before the first gap. Other prompts may start from these alone."""
        first = self.spans[0]
        before = len(first) if first.start == 0 else 0
        return min(computed, before) if self.left_out else computed


def choose(importance: NDArray[np.float32], share: Share, known: int = 0) -> Selection:
    """Keep a share of the tokens after the first `known`. Those, and the last chunk of the prompt, are always kept.

    `importance` has a value for each token. Whole chunks are kept: first those spread evenly, then the most important.
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
    # Ties go to the first chunk, so that the same prompt has the same selection everywhere.
    kept[np.argsort(-rest, kind="stable")[:wanted]] = True
    return Selection(_spans(kept, edges, sizes, known), length)


def _smoothed(importance: NDArray[np.float32]) -> NDArray[np.float64]:
    """The mean over a window around each token, shorter towards the ends."""
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

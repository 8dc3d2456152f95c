"""Trees of tokens that may follow: how the likeliest one grows, and when checking one pays more than a chain.

A chain has one token for each place, a tree the second and third choice too where they are likelier to be right than
what is far down the chain (EAGLE-2, arXiv:2406.16858). It takes more tokens for the same depth, so that it pays where
wide passes cost little: on a device that waits for weights, for few sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pippin.engines.language.step.speculation.pace import (
    CURIOUS,
    DOUBT,
    SMOOTHING,
    WORTH,
    Pace,
    expected_tokens,
)

CHOICES = 8  # most tokens of a tree that follow the same token
GAIN = 0.08
"""The share of tokens that a tree is assumed to give more than a chain of as many tokens, for each doubling of that
number, before it is measured. The head in docs/speculation.md has 0.06 to 0.08 from 4 to 32 tokens."""


class _Node(NamedTuple):
    token: int
    parent: int  # index among the nodes; -1 for what follows the text
    depth: int
    chance: float  # the log probability of this token and all before it


class LikeliestTree:
    """The likeliest tokens that may follow a text, up to a number of them.

    It grows one level at a time. No token of the likeliest tree is missed, because a token is never likelier than the
    one before it: only tokens that stay in the tree need to be asked what follows them.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._nodes: list[_Node] = []
        self._depth = 0  # of the newest level
        self.sources: list[int] = []
        """For each token, the row of its parent among the rows that `grow` was given; row 0 is the text."""

    @property
    def tokens(self) -> list[int]:
        return [node.token for node in self._nodes]

    @property
    def parents(self) -> list[int]:
        return [node.parent for node in self._nodes]

    def grow(self, tokens: NDArray[np.int32], chances: NDArray[np.float32]) -> bool:
        """Add the tokens that may follow the text (row 0) and each token of the tree (the rows after it, in order),
        with their log probabilities, both [1 + tokens, choices]. Only rows of the newest level matter. Returns whether
        there is a new level."""
        found = list(self._nodes)
        newest = [index for index, node in enumerate(found) if node.depth == self._depth]
        for parent in newest if self._depth else [-1]:
            before = found[parent].chance if parent >= 0 else 0.0
            for token, chance in zip(tokens[parent + 1].tolist(), chances[parent + 1].tolist(), strict=True):
                if chance > -np.inf:
                    found.append(_Node(token, parent, self._depth + 1, before + min(chance, 0.0)))
        # A parent comes before its children, also where both are equally likely.
        order = sorted(range(len(found)), key=lambda index: (-found[index].chance, found[index].depth))
        kept = order[: self._most]
        places = {-1: -1, **{old: new for new, old in enumerate(kept)}}
        self.sources = [found[index].parent + 1 for index in kept]
        self._nodes = [found[index]._replace(parent=places[found[index].parent]) for index in kept]
        self._depth += 1
        return any(node.depth == self._depth for node in self._nodes)


@dataclass
class TreePace:
    """Decides when to check trees instead of the chains that `pace` chooses, and of how many tokens, from the tokens
    that trees have given and the time of their steps. What trials lose comes out of the budget of `pace`."""

    pace: Pace
    most: int
    _gained: dict[int, float] = field(default_factory=dict)  # factors on `_hoped`, by size
    _checks: int = 0

    def size(self, chances: Sequence[float], chains: Sequence[int], room: int) -> int:
        """Tokens of the tree of each sequence; 0 where chains of the lengths `chains`, or no proposals, give more
        tokens a second. `chances`: that a token of a chain is right. `room`: most tokens of a tree."""
        sizes = [size for size in self._sizes if size <= room]
        if not sizes or not self.pace.may_propose(len(chances)):
            return 0
        plain = self.pace.rate(chances, [0] * len(chances))
        rivals = max(plain, self.pace.rate(chances, chains))
        best = max(sizes, key=lambda size: self._rate(chances, size))
        if self._rate(chances, best) > WORTH * rivals:
            return best
        tried = sizes[self._checks // CURIOUS % len(sizes)]
        due = self._checks % CURIOUS == CURIOUS // 2 if rivals > WORTH * plain else not any(chains)
        surer = [min(1.0, chance + DOUBT) for chance in chances]
        may_pay = self._rate(surer, tried) > WORTH * rivals
        affords = self._loss(chances, tried) < self.pace.budget
        return tried if due and affords and (may_pay or self.pace.has_savings) else 0

    @property
    def _sizes(self) -> list[int]:
        return [1 << power for power in range(1, self.most.bit_length()) if 1 << power <= self.most]

    def observe(self, chances: Sequence[float], size: int, tokens: int) -> None:
        """A check of trees of this size, or of chains if the size is 0, gave `tokens` in all."""
        self._checks += 1
        if size:
            share = tokens / self._hoped(chances, size)
            known = self._gained.get(size, 1.0)
            self._gained[size] = known + SMOOTHING * (share - known)

    def _hoped(self, chances: Sequence[float], size: int) -> float:
        return sum(expected_tokens(chance, size) for chance in chances) * (1 + GAIN * log2(size))

    def _tokens(self, chances: Sequence[float], size: int) -> float:
        nearest = min(self._gained, key=lambda known: abs(log2(known / size)), default=None)
        found = self._hoped(chances, size) * (1.0 if nearest is None else self._gained[nearest])
        return min(found, len(chances) * (1.0 + size))

    def _seconds(self, chances: Sequence[float], size: int) -> float:
        return self.pace.tree_times.expected(len(chances), len(chances) * (1 + size))

    def _rate(self, chances: Sequence[float], size: int) -> float:
        """Tokens a second of all sequences."""
        return self._tokens(chances, size) / max(self._seconds(chances, size), 1e-9)

    def _loss(self, chances: Sequence[float], size: int) -> float:
        """Seconds by which a step is expected to be slower than plain steps that give as many tokens."""
        count = len(chances)
        won = self.pace.times.plain(count) * self._tokens(chances, size) / count
        return self._seconds(chances, size) - won

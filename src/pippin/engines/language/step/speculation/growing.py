"""How trees grow for all sequences of a group at once: by one level in each pass of the drafter."""

from collections.abc import Callable, Mapping

import mlx.core as mx
import numpy as np

from pippin.engines.language.kv_cache.branches import Branches
from pippin.engines.language.kv_cache.groups import BatchedGroup
from pippin.engines.language.step.speculation.proposers import Proposal
from pippin.engines.language.step.speculation.trees import CHOICES, LikeliestTree

Likeliest = Callable[[mx.array, int], tuple[mx.array, mx.array]]
"""Takes what a drafter returns [slots, tokens, size] and a number of choices. Returns the likeliest tokens that follow
each token, and their log probabilities, both [slots, tokens, choices]."""


class Grove:
    """The trees of the sequences in a group's slots."""

    def __init__(self, group: BatchedGroup, most: Mapping[int, int]) -> None:
        """`most`: the most tokens of the tree of each slot with a sequence; 0 where no tree is wanted."""
        self._group = group
        self._trees = {slot: LikeliestTree(count) for slot, count in most.items()}

    def grow(self, given: mx.array, likeliest: Likeliest, *, by_states: bool) -> dict[int, Proposal]:
        """Returns the trees by slot. `given` is what the drafter returns for the last token of the text
        [slots, 1, size]; its caches are as before afterwards. `by_states`: it takes, beside each token, what it has
        returned for the one before."""
        found = given
        while self._take_level(*likeliest(found, CHOICES)):
            # All levels are computed again, side by side: a drafter's passes are short, whatever they compute.
            found = mx.concatenate([given, self._pass(found if by_states else None)], axis=1)
        return {slot: Proposal(tree.tokens, parents=tree.parents) for slot, tree in self._trees.items()}

    def _take_level(self, tokens: mx.array, chances: mx.array) -> bool:
        """Let the trees grow by a level. Returns whether any did."""
        words, logarithms, low = np.array(tokens), np.array(chances), self._group.low
        grew = [tree.grow(words[slot - low], logarithms[slot - low]) for slot, tree in self._trees.items()]
        return any(grew)

    def _pass(self, before: mx.array | None) -> mx.array:
        """What the drafter returns for the tokens of the trees [slots, tokens, size]."""
        group = self._group
        width = max(len(tree.tokens) for tree in self._trees.values())
        tokens, sources = np.zeros((2, group.high - group.low, width), np.int32)
        ways: list[list[int]] = [[] for _ in tokens]
        for slot, tree in self._trees.items():
            row = slot - group.low
            tokens[row, : len(tree.tokens)], sources[row, : len(tree.tokens)] = tree.tokens, tree.sources
            ways[row] = tree.parents
        states = None if before is None else mx.take_along_axis(before, mx.array(sources)[..., None], axis=1)
        after = group.forward(mx.array(tokens), states, Branches.of(ways, width))
        group.rewind(dict.fromkeys(self._trees, width))
        return after

"""Gemma 2's attention for sequences of different length: mlx-lm 0.32 has it for one mask of all sequences alone."""

from typing import Any

import mlx.core as mx
from mlx_lm.models.gemma2 import Attention

from pippin.engines.language.upstream.mends import Mend, to


class OfAnyMasks(Attention):  # type: ignore[misc] # mlx-lm has no types
    def __call__(self, x: mx.array, mask: mx.array | None = None, cache: Any = None) -> mx.array:
        """A mask of each sequence has the shape [sequences, 1, queries, keys]; scores of grouped queries have the
        shape [sequences, groups, queries of a group, queries, keys]."""
        if mask is not None and mask.ndim == 4 and self.repeats > 1:
            mask = mx.expand_dims(mask, 2)
        attended: mx.array = super().__call__(x, mask, cache)
        return attended


MENDS = (
    Mend(
        original=Attention,
        kind="fault",
        why="a mask of each sequence does not fit the scores of grouped queries, or fits other sequences",
        issue="https://github.com/ml-explore/mlx-lm/pull/1903",
        loaded=to(OfAnyMasks),
    ),
)

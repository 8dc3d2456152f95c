"""LongCat Flash's embedding of the last few tokens, which mlx-lm 0.32 keeps as many of as there were.

Here it keeps the same number from the first token on, with zeros before it, which is what it reads there: sequences of
one or two tokens run beside longer ones, and all of them take tokens back.
"""

from typing import Any

import mlx.core as mx
from mlx_lm.models.longcat_flash_ngram import NgramEmbedding

from pippin.engines.language.upstream.mends import exchanged


class OfAnyLengths(NgramEmbedding):  # type: ignore[misc] # mlx-lm has no types
    def __call__(self, input_ids: mx.array, cache: Any = None) -> mx.array:
        if cache is not None and cache[0] is None:
            cache[0] = mx.zeros((input_ids.shape[0], self.n - 1), mx.int64)
        embedded: mx.array = super().__call__(input_ids, cache)
        return embedded


MENDS = (
    exchanged(
        OfAnyLengths,
        "a sequence of one or two tokens keeps fewer earlier tokens than others",
        kind="batching",
    ),
)

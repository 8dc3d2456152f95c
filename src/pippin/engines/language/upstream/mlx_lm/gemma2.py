"""Gemma 2's attention for sequences of different length, which mlx-lm 0.32 has for one mask of all sequences alone, and
the windows of every other layer, which it leaves out."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache, RotatingKVCache
from mlx_lm.models.gemma2 import Attention, GemmaModel, Model

from pippin.engines.language.upstream.classes import become
from pippin.engines.language.upstream.mends import Mend, exchanged


class OfAnyMasks(Attention):  # type: ignore[misc] # mlx-lm has no types
    def __call__(self, x: mx.array, mask: mx.array | None = None, cache: Any = None) -> mx.array:
        """A mask of each sequence has the shape [sequences, 1, queries, keys]; scores of grouped queries have the
        shape [sequences, groups, queries of a group, queries, keys]."""
        if mask is not None and mask.ndim == 4 and self.repeats > 1:
            mask = mx.expand_dims(mask, 2)
        attended: mx.array = super().__call__(x, mask, cache)
        return attended


class OfTwoMasks(GemmaModel):  # type: ignore[misc]
    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        hidden = self.embed_tokens(inputs) * self.args.hidden_size**0.5
        caches = cache or [None] * len(self.layers)
        masks = [
            create_attention_mask(hidden, own, window_size=size, return_array=True)
            for own, size in zip(caches, (self.window, None), strict=False)
        ]
        for place, (layer, own) in enumerate(zip(self.layers, caches, strict=True)):
            hidden = layer(hidden, masks[place % 2], own)
        found: mx.array = self.norm(hidden)
        return found


def take_window(model: Model, config: Mapping[str, Any]) -> None:
    size = config.get("sliding_window") or 4096

    def make_cache() -> list[Any]:
        return [
            KVCache() if place % 2 else RotatingKVCache(max_size=size) for place in range(len(model.layers))
        ]

    # The model keeps its class, by which its other mends are found.
    model.make_cache = make_cache
    become(model.model, OfTwoMasks)
    model.model.window = size


MENDS = (
    exchanged(
        OfAnyMasks,
        "a mask of each sequence does not fit the scores of grouped queries, or fits other sequences",
        issue="https://github.com/ml-explore/mlx-lm/pull/1903",
    ),
    Mend(original=Model, why="every other layer has a window, which is left out", made=take_window),
)

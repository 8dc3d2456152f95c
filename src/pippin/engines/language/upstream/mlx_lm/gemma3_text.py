"""Gemma 3's scale of embeddings, which mlx-lm 0.32 rounds to bfloat16 whatever the weights are stored in: transformers
rounds it to their type, so that it is exact for those in float32 (EmbeddingGemma). And models of so few layers that
none sees all tokens: the class makes a mask by the cache of the first such layer."""

from typing import Any

import mlx.core as mx
from mlx_lm.models.gemma3_text import Gemma3Model

from pippin.engines.language.upstream.classes import become
from pippin.engines.language.upstream.mends import Mend


class OfAnyDepth(Gemma3Model):  # type: ignore[misc] # mlx-lm has no types
    def __call__(self, inputs: mx.array, cache: Any = None, input_embeddings: Any = None) -> mx.array:
        caches = lengthened(cache or [None] * len(self.layers), self.sliding_window_pattern)
        found: mx.array = super().__call__(inputs, caches, input_embeddings)
        return found


def lengthened(caches: list[Any], pattern: int) -> list[Any]:
    """The caches of all layers, and more where a layer `pattern` is asked for its mask, which no layer takes."""
    return [*caches, *caches[:1] * (pattern - len(caches))]


class ExactlyScaled(OfAnyDepth):
    def __call__(self, inputs: mx.array, cache: Any = None, input_embeddings: Any = None) -> mx.array:
        scale = self.args.hidden_size**0.5
        rounded = mx.array(scale, mx.bfloat16).item()
        embedded = self.embed_tokens(inputs) if input_embeddings is None else input_embeddings
        found: mx.array = super().__call__(inputs, cache, embedded * (scale / rounded))
        return found


def scale_exactly(model: Gemma3Model) -> None:
    if model.embed_tokens.weight.dtype == mx.float32:
        model.args.exact_scale = True
        become(model, ExactlyScaled)
    elif len(model.layers) < model.sliding_window_pattern:
        become(model, OfAnyDepth)


MENDS = (
    Mend(
        original=Gemma3Model,
        why="the scale of embeddings in float32 is rounded to bfloat16; fewer layers than its pattern has fail",
        loaded=scale_exactly,
    ),
)

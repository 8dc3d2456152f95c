"""Llama 4's layers for sequences of different length: what its models of mlx-lm and of mlx-vlm are mended by."""

from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_attention_mask, scaled_dot_product_attention

from pippin.engines.language.kv_cache.slots import PromptCache


def sees_chunk(layer: int) -> bool:
    """Whether the layer with this index is one of chunked attention; each fourth sees all tokens."""
    return (layer + 1) % 4 != 0


def through_layers(model: Any, hidden: mx.array, cache: PromptCache) -> mx.array:
    """The states after the last norm, of what the tokens are embedded as."""
    masks: dict[bool, Any] = {}
    for place, (layer, own) in enumerate(zip(model.layers, cache, strict=True)):
        kind = sees_chunk(place)
        if kind not in masks:
            masks[kind] = create_attention_mask(hidden, own)
        hidden = layer(hidden, masks[kind], cache=own)
    found: mx.array = model.norm(hidden)
    return found


def of_any_positions(kind: type) -> type:
    """A class of attention that scales queries by the positions of each sequence."""

    class OfAnyPositions(kind):  # type: ignore[misc]
        def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
            if cache is None or self.use_rope or not self.attn_temperature_tuning:
                attended: mx.array = super().__call__(x, mask, cache)
                return attended
            return _scaled_attention(self, x, mask, cache)

    return OfAnyPositions


def _scaled_attention(attention: Any, x: mx.array, mask: Any, cache: Any) -> mx.array:
    """The attention of a layer that sees all tokens: queries are not rotated, but scaled by their positions."""
    sequences, count, _ = x.shape

    def heads(projected: mx.array, number: int) -> mx.array:
        return projected.reshape(sequences, count, number, -1).transpose(0, 2, 1, 3)

    queries = heads(attention.q_proj(x), attention.n_heads)
    keys = heads(attention.k_proj(x), attention.n_kv_heads)
    values = heads(attention.v_proj(x), attention.n_kv_heads)
    ends = mx.array(cache.offset)[..., None] + mx.arange(1, count + 1)
    scales = mx.log(mx.floor(ends / attention.floor_scale) + 1.0) * attention.attn_scale + 1.0
    queries = (queries * scales.reshape(-1, 1, count, 1)).astype(queries.dtype)
    keys, values = cache.update_and_fetch(keys, values)
    attended = scaled_dot_product_attention(queries, keys, values, cache, scale=attention.scale, mask=mask)
    found: mx.array = attention.o_proj(attended.transpose(0, 2, 1, 3).reshape(sequences, count, -1))
    return found

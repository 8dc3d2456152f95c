"""AFM's last layers, which attend to the keys and values of an earlier one, for sequences of different length: mlx-lm
0.32 tells the positions of their queries from how many keys there are."""

from typing import Any

import mlx.core as mx
from mlx_lm.models.afm7 import AFMModel, KVReuseAttention, KVReuseTransformerBlock, Model
from mlx_lm.models.base import create_attention_mask, scaled_dot_product_attention

from pippin.engines.language.upstream.mends import Mend, to


class OfAnyLengths(AFMModel):  # type: ignore[misc] # mlx-lm has no types
    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        cache = Model.make_cache(self) if cache is None else cache
        hidden = self.embedding(inputs)
        mask = create_attention_mask(hidden, cache[0])
        starts = cache[-1].offset  # one for all sequences, or one of each
        for layer, own in zip(self.layers, cache, strict=True):
            hidden = layer(hidden, mask, cache=own)
        for layer in self.kv_reuse_layers:
            hidden = layer(hidden, mask, cache[-1], starts)
        found: mx.array = self.output_norm(hidden)
        return found


class ReuseBlock(KVReuseTransformerBlock):  # type: ignore[misc]
    def __call__(self, x: mx.array, mask: Any, cache: Any, starts: Any) -> mx.array:
        hidden = x + self.self_attn(self.input_layernorm(x), mask, cache, starts)
        found: mx.array = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return found


class ReuseAttention(KVReuseAttention):  # type: ignore[misc]
    def __call__(self, x: mx.array, mask: Any, cache: Any, starts: Any) -> mx.array:
        """`cache` is that of the layer whose keys and values are used, `starts` its offsets before these tokens."""
        sequences, count, _ = x.shape
        queries = self.q_proj(x).reshape(sequences, count, self.n_heads, -1).transpose(0, 2, 1, 3)
        queries = self.q_norm(self.rope(queries, offset=starts))
        keys, values = cache.keys_and_values()
        attended = scaled_dot_product_attention(
            queries, keys, values, cache=cache, scale=self.scale, mask=mask
        )
        found: mx.array = self.out_proj(attended.transpose(0, 2, 1, 3).reshape(sequences, count, -1))
        return found


MENDS = (
    Mend(
        original=AFMModel,
        kind="batching",
        why="the last layers are told how many tokens came before, one number for all sequences",
        loaded=to(OfAnyLengths),
    ),
    Mend(
        original=KVReuseTransformerBlock,
        kind="batching",
        why="it passes on the cache of the layer whose keys and values it uses, and that layer's offsets",
        loaded=to(ReuseBlock),
    ),
    Mend(
        original=KVReuseAttention,
        kind="batching",
        why="positions of queries are told from how many keys there are, which is right for one sequence",
        loaded=to(ReuseAttention),
    ),
)

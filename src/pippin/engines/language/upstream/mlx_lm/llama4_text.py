"""Llama 4's text layers: mlx-lm 0.32 norms queries and keys before they turn, and in the layers without rotary
positions too, and leaves out that queries of these grow with the tokens behind them (transformers'
`Llama4TextAttention`)."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.llama4_text import Attention

from pippin.engines.language.upstream.classes import become
from pippin.engines.language.upstream.mends import Mend


class Published(Attention):  # type: ignore[misc] # mlx-lm has no types
    """Queries of a layer without positions grow by `grows` from every `every` tokens on."""

    grows: float
    every: int

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        rows, length, _ = x.shape
        queries, keys, values = (
            each(x).reshape(rows, length, heads, -1).transpose(0, 2, 1, 3)
            for each, heads in (
                (self.q_proj, self.n_heads),
                (self.k_proj, self.n_kv_heads),
                (self.v_proj, self.n_kv_heads),
            )
        )
        offset = 0 if cache is None else cache.offset
        if self.use_rope:
            queries, keys = (self.rope(each, offset=offset) for each in (queries, keys))
            if self.use_qk_norm:  # behind the turn, which may scale
                queries, keys = (mx.fast.rms_norm(each, None, self.rms_norm_eps) for each in (queries, keys))
        else:
            places = mx.array(offset).reshape(-1, 1) + mx.arange(1, length + 1)
            growth = self.grows * mx.log1p(mx.floor(places / self.every))
            queries = queries * (1 + growth)[:, None, :, None].astype(queries.dtype)
        if cache is not None:
            keys, values = cache.update_and_fetch(keys, values)
        seen = scaled_dot_product_attention(queries, keys, values, cache=cache, scale=self.scale, mask=mask)
        found: mx.array = self.o_proj(seen.transpose(0, 2, 1, 3).reshape(rows, length, -1))
        return found


def as_published(module: Attention, config: Mapping[str, Any]) -> None:
    become(module, Published)
    tuned = config.get("attn_temperature_tuning", True)
    module.grows = config.get("attn_scale", 0.1) if tuned else 0.0
    module.every = config.get("floor_scale", 8192)


MENDS = (
    Mend(
        original=Attention,
        why="norms are taken before positions, and in layers without them, whose queries do not grow",
        made=as_published,
    ),
)

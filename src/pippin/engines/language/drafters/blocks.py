"""DFlash: a drafter that drafts a block of tokens in one pass from the model's states.

Their context is the model's states after some of its layers, from which each layer of the drafter makes keys and
values. A block is the newest token and mask tokens behind it; all of them see the context, and mostly each other.
Projections and norms are mlx-vlm's modules; attention is implemented here, for rows with contexts of different lengths.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, RotatingKVCache
from mlx_vlm.speculative.drafters.qwen3_dflash.dflash import DFlashDraftModel

from pippin.engines.language.drafters.heads import DraftHead
from pippin.engines.language.kv_cache.kinds.base import PromptCache
from pippin.engines.language.upstream.classes import replace_method


class BlockHead(DraftHead):
    """DFlash. Called with the model's states, it adds them to its context; called without, it drafts."""

    def __init__(self, inner: Any) -> None:
        config = inner.config
        layers = tuple(config.target_layer_ids)
        super().__init__(inner, len(layers) * config.hidden_size, layers)
        self.most = max(1, int(config.block_size) - 1)
        for layer in inner.layers:
            _attend_in_rows(layer.self_attn)

    def share(self, model: nn.Module) -> None:
        # Not a subclass's own method: that one checks whether a model of mlx-vlm can roll back as its rounds need it.
        DFlashDraftModel.bind(self.inner, model)

    def share_parts(self, embed: Any, project: Any) -> None:
        self.inner.embed_tokens, self.inner.lm_head = embed, project

    def make_cache(self) -> PromptCache:
        # mlx-vlm's caches hold one token less in a window, because the block is not in them.
        every = self.inner.config.draft_window_size
        windows = (every or layer.self_attn.sliding_window for layer in self.inner.layers)
        return [KVCache() if window is None else RotatingKVCache(max_size=window) for window in windows]

    def __call__(self, tokens: mx.array, cache: PromptCache, states: mx.array | None = None) -> mx.array:
        """Adds `states` [sequences, count, state_size] to the context, and returns zeros [sequences, count, 1].

        Without states, returns its own states [sequences, count, size] for a block of tokens.
        """
        inner = self.inner
        if states is not None:
            context = inner.hidden_norm(inner.fc(states))
            for layer, part in zip(inner.layers, cache, strict=True):
                _, keys, values = _projected(layer.self_attn, context)
                part.update_and_fetch(inner.rope(keys, offset=part.offset), values)
            return mx.zeros((*tokens.shape, 1))
        own = inner._embed_input_tokens(tokens)
        for layer, part in zip(inner.layers, cache, strict=True):
            own = layer(own, None, inner.rope, part)
        found: mx.array = inner.norm(own)
        return found

    def draft_ahead(
        self, forward: Callable[[mx.array, Any], mx.array], last: mx.array, own: mx.array, most: int
    ) -> mx.array:
        masks = mx.full((last.shape[0], most), self.inner.config.mask_token_id, last.dtype)
        states = forward(mx.concatenate([last, masks], axis=1), None)
        return mx.argmax(self.inner._logits(states[:, 1:]), axis=-1).astype(mx.int32)


def _projected(attention: Any, states: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Queries, keys and values [sequences, heads, count, size] each, normalised and not rotated yet."""
    found = [attention.q_proj(states), *attention._project_kv(states)]
    counts = (attention.n_heads, attention.n_kv_heads, attention.n_kv_heads)
    norms = (attention.q_norm, attention.k_norm, lambda each: each)
    queries, keys, values = (
        norm(each.reshape(*states.shape[:2], count, -1)).transpose(0, 2, 1, 3)
        for each, count, norm in zip(found, counts, norms, strict=True)
    )
    return queries, keys, values


def _attend_in_rows(attention: Any) -> None:
    """Let an attention of mlx-vlm read the context of each row from the cache, by another method of it."""

    def attend(
        self: Any, x: mx.array, context: None, rope: Any, cache: Any, projected: None = None
    ) -> mx.array:
        rows, count = x.shape[:2]
        mask = cache.make_mask(count, return_array=True, window_size=self.sliding_window)
        if not self.is_causal:
            # What any token of a block sees, all of them see.
            mask = mask.any(axis=-2, keepdims=True)
        queries, keys, values = _projected(self, x)
        offset = cache.offset
        queries, keys = rope(queries, offset=offset), rope(keys, offset=offset)
        keys, values = cache.update_and_fetch(keys, values)
        sinks = getattr(self, "attention_sink_bias", None)
        found = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self.scale, mask=mask, sinks=sinks
        ).transpose(0, 2, 1, 3)
        projected_found: mx.array = self.o_proj(found.reshape(rows, count, -1))
        return projected_found

    replace_method(attention, "__call__", lambda _: attend, mark="alone")

"""DSpark as DeepSeek V4 has it: a drafter of blocks whose layers are the model's own kind, with several streams for a
token, latent attention and experts.

Its context is, for each of the model's layers that it reads, the mean over the streams. A token of a block attends to
the newest part of the context, as much as a window holds, and to the whole block.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import RotatingKVCache
from mlx_vlm.models.deepseek_v4.language import LocalAttention
from mlx_vlm.speculative.drafters.deepseek_v4_dspark.deepseek_v4_dspark import (
    DeepseekV4DsparkDraftModel,
    DSparkMLACrossAttention,
)

from pippin.engines.language.classes import become
from pippin.engines.language.drafters.blocks import BlockHead, seen
from pippin.engines.language.kv_cache.slots import PromptCache


class DeepseekBlockHead(BlockHead):
    """A drafter that the model's checkpoint brings in its `mtp.*` weights, or that mlx-vlm has split off."""

    def __init__(self, inner: DeepseekV4DsparkDraftModel) -> None:
        super().__init__(inner, streams=inner.hc_mult)
        self.from_anchor = True

    def _attend_in_rows(self) -> None:
        for stage in self.inner.stages:
            become(stage.attn, _AttentionInRows)

    def share(self, model: nn.Module) -> None:
        self.inner.bind(model)

    def share_parts(self, embed: Any, project: Any) -> None:
        self.inner._input_embed, self.inner._lm_head_fn = embed, project

    def make_cache(self) -> PromptCache:
        # The window does not count the token itself.
        return [RotatingKVCache(max_size=self.inner.args.sliding_window + 1) for _ in self.inner.stages]

    def _context(self, states: mx.array) -> mx.array:
        layers = len(self.inner.config.target_layer_ids)
        streams = states.reshape(*states.shape[:2], layers, self.inner.hc_mult, -1)
        first = self.inner.stages[0]
        found: mx.array = first.main_norm(first.main_proj(streams.mean(axis=3).flatten(2)))
        return found

    def _remember(self, states: mx.array, cache: PromptCache) -> None:
        context = self._context(states)
        for stage, part in zip(self.inner.stages, cache, strict=True):
            stage.attn.remember(context, part)

    def _after(self, tokens: mx.array, cache: PromptCache) -> mx.array:
        # The module takes new context, but no layer reads it: all context is in the cache.
        unread = mx.zeros((1, 1, self.state_size // self.inner.hc_mult), self.dtype)
        found: mx.array = self.inner._hidden(tokens, unread, cache)
        return found


class _AttentionInRows(DSparkMLACrossAttention):  # type: ignore[misc] # mlx-vlm has no types
    """Reads the context of each row from the cache. But for its mask, it is the model's own attention."""

    def remember(self, context: mx.array, cache: Any) -> None:
        """Add the keys of context [rows, count, hidden], which are the values too."""
        keys = self.rope(self.kv_norm(self.wkv(context))[:, None], cache.offset)
        cache.update_and_fetch(keys, keys[..., :0])

    def __call__(self, x: mx.array, x_ctx: mx.array, cache: Any) -> mx.array:
        """For a block [rows, count, hidden]. `x_ctx` is not read: the cache has all context."""
        mask = seen(cache.make_mask(x.shape[1], return_array=True), "whole")
        found: mx.array = LocalAttention.__call__(self, x, mask, cache)
        return found

"""Drafters of blocks: DFlash, DFlash 2 and DSpark. They say several next tokens in one pass, given the model's states.

Their context is the model's states after some of its layers, which become keys and values of each of their own layers;
a block is the newest token and masks behind it, all of which see that context and each other. mlx-vlm's modules project
and normalise; attention is written here again, for rows that have contexts of different lengths.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, RotatingKVCache
from mlx_vlm.speculative.drafters.dflash2.dflash2 import DFlash2DraftModel
from mlx_vlm.speculative.drafters.dspark.dspark import DSparkDraftModel
from mlx_vlm.speculative.drafters.qwen3_dflash.dflash import DFlashDraftModel

from pippin.engines.language.drafters.heads import Drafted, DraftHead
from pippin.engines.language.kv_cache.slots import PromptCache


class BlockHead(DraftHead):
    """A drafter of blocks. Called with the model's states it remembers them; without, it drafts."""

    def __init__(self, inner: DFlashDraftModel) -> None:
        config = inner.config
        layers = tuple(config.target_layer_ids)
        super().__init__(inner, len(layers) * config.hidden_size, layers)
        self.most = max(1, int(config.block_size) - 1)
        for layer in inner.layers:
            _attend_in_rows(layer.self_attn)

    def share(self, model: nn.Module) -> None:
        # Not by a subclass's own method, which asks models of mlx-vlm whether they roll back as its rounds need it.
        DFlashDraftModel.bind(self.inner, model)

    def share_parts(self, embed: Any, project: Any) -> None:
        self.inner.embed_tokens, self.inner.lm_head = embed, project

    def make_cache(self) -> PromptCache:
        # mlx-vlm's hold one token less in a window: there, the block is not among them.
        every = self.inner.config.draft_window_size
        windows = (every or layer.self_attn.sliding_window for layer in self.inner.layers)
        return [KVCache() if window is None else RotatingKVCache(max_size=window) for window in windows]

    def __call__(self, tokens: mx.array, cache: PromptCache, states: mx.array | None = None) -> mx.array:
        """With states [sequences, count, state_size] nothing of meaning, [sequences, count, 1]; without, its own states
        [sequences, count, size] for a block of tokens."""
        if states is not None:
            self._remember(states, cache)
            return mx.zeros((*tokens.shape, 1))
        inner = self.inner
        own = inner._embed_input_tokens(tokens)
        for layer, part in zip(inner.layers, cache, strict=True):
            own = layer(own, None, inner.rope, part)
        found: mx.array = inner.norm(own)
        return found

    def _remember(self, states: mx.array, cache: PromptCache) -> None:
        inner = self.inner
        context = inner.hidden_norm(inner.fc(states))
        for layer, part in zip(inner.layers, cache, strict=True):
            keys, values = _keys_and_values(layer.self_attn, context)
            part.update_and_fetch(inner.rope(keys, offset=part.offset), values)

    def draft_ahead(
        self,
        forward: Callable[[mx.array, mx.array | None], mx.array],
        last: mx.array,
        own: mx.array,
        most: int,
    ) -> Drafted:
        inner, config = self.inner, self.inner.config
        from_anchor = isinstance(inner, DSparkDraftModel) and config.sample_from_anchor
        masks = mx.full((last.shape[0], most - from_anchor), config.mask_token_id, last.dtype)
        block = mx.concatenate([last, masks], axis=1)
        states = forward(block, None)
        states = states if from_anchor else states[:, 1:]
        return Drafted(self._tokens(states, last), block.shape[1])

    def _tokens(self, states: mx.array, last: mx.array) -> mx.array:
        inner, logits = self.inner, self.inner._logits(states)
        found: mx.array
        match inner:
            case DSparkDraftModel():
                found = inner.markov_head.sample_block(logits, first_prev_tokens=last, sampler=_likeliest)
            case DFlash2DraftModel():
                found = inner.candidate_selector.select(states, logits, last, _likeliest)
            case _:
                found = _likeliest(logits)
        return found.astype(mx.int32)


def _likeliest(logits: mx.array) -> mx.array:
    return mx.argmax(logits, axis=-1)


def _keys_and_values(attention: Any, states: mx.array) -> tuple[mx.array, mx.array]:
    """[sequences, heads, count, size] each, not rotated yet."""
    shape = (*states.shape[:2], attention.n_kv_heads, -1)
    keys, values = attention._project_kv(states)
    keys = attention.k_norm(keys.reshape(shape)).transpose(0, 2, 1, 3)
    return keys, values.reshape(shape).transpose(0, 2, 1, 3)


def _attend_in_rows(attention: Any) -> None:
    """Have an attention of mlx-vlm's look at what its cache has of each row, by giving it a subclass of its class."""
    base = type(attention)

    def attend(
        self: Any, x: mx.array, context: None, rope: Any, cache: Any, projected: None = None
    ) -> mx.array:
        rows, count = x.shape[:2]
        mask = cache.make_mask(count, return_array=True, window_size=self.sliding_window)
        if not self.is_causal:
            mask = mask.any(axis=-2, keepdims=True)  # each sees what any of the block does
        queries = self.q_norm(self.q_proj(x).reshape(rows, count, self.n_heads, -1)).transpose(0, 2, 1, 3)
        keys, values = _keys_and_values(self, x)
        offset = cache.offset
        queries, keys = rope(queries, offset=offset), rope(keys, offset=offset)
        keys, values = cache.update_and_fetch(keys, values)
        found = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self.scale, mask=mask, sinks=self.attention_sink_bias
        )
        projected_found: mx.array = self.o_proj(found.transpose(0, 2, 1, 3).reshape(rows, count, -1))
        return projected_found

    attention.__class__ = type(base.__name__, (base,), {"__call__": attend})

"""Drafters of blocks: DFlash, DFlash 2, DSpark, and DFlash as Laguna and Muse Glimmer have it. They draft several
tokens in one pass from the model's states.

Their context is the model's states after some of its layers, from which each layer of the drafter makes keys and
values. A block is the newest token and mask tokens behind it; all of them see the context, and mostly each other.
Projections and norms are mlx-vlm's modules; attention is implemented here, for rows with contexts of different lengths.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, RotatingKVCache
from mlx_vlm.speculative.drafters.deepseek_v4_dspark.deepseek_v4_dspark import DeepseekV4DsparkDraftModel
from mlx_vlm.speculative.drafters.dflash2.dflash2 import DFlash2DraftModel
from mlx_vlm.speculative.drafters.dspark.dspark import DSparkDraftModel
from mlx_vlm.speculative.drafters.laguna_dflash.dflash import LagunaDFlashDraftModel
from mlx_vlm.speculative.drafters.muse_glimmer_assistant.dflash import MuseGlimmerAssistantDraftModel
from mlx_vlm.speculative.drafters.qwen3_dflash.dflash import DFlashDraftModel

from pippin.engines.language.classes import replace_method
from pippin.engines.language.drafters.heads import DraftHead
from pippin.engines.language.kv_cache.slots import PromptCache

Sight = Literal["whole", "before", "within"]
"""What a token of a block sees. "whole": all that any token of the block sees; "before": what it and the tokens before
it see; "within": what lies within a window before it, and all of the block behind it."""


class BlockHead(DraftHead):
    """A drafter of blocks. Called with the model's states, it adds them to its context; called without, it drafts."""

    def __init__(self, inner: Any, streams: int = 1) -> None:
        """`streams`: states of a token that each layer of the model leaves."""
        config = inner.config
        layers = tuple(config.target_layer_ids)
        super().__init__(inner, len(layers) * streams * config.hidden_size, layers)
        self.most = max(1, int(config.block_size) - 1)
        self.from_anchor = isinstance(inner, DSparkDraftModel) and config.sample_from_anchor
        self._attend_in_rows()

    def _attend_in_rows(self) -> None:
        """Replace its attention by one that reads the context of each row from the cache."""
        for layer in self.inner.layers:
            _attend_in_rows(layer.self_attn, self._sight(layer.self_attn))

    def _sight(self, attention: Any) -> Sight | None:
        """None for attention as in models: a token sees what lies within a window before it."""
        return None if attention.is_causal else "whole"

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
        """With states [sequences, count, state_size]: adds them to the context, and returns zeros [sequences, count,
        1]. Without: returns its own states [sequences, count, size] for a block of tokens."""
        if states is not None:
            self._remember(states, cache)
            return mx.zeros((*tokens.shape, 1))
        return self._after(tokens, cache)

    def _after(self, tokens: mx.array, cache: PromptCache) -> mx.array:
        """Its own states for a block of tokens."""
        inner = self.inner
        own = inner._embed_input_tokens(tokens)
        for layer, part in zip(inner.layers, cache, strict=True):
            own = layer(own, None, inner.rope, part)
        found: mx.array = inner.norm(own)
        return found

    def _context(self, states: mx.array) -> mx.array:
        found: mx.array = self.inner.hidden_norm(self.inner.fc(states))
        return found

    def _remember(self, states: mx.array, cache: PromptCache) -> None:
        inner, context = self.inner, self._context(states)
        for layer, part in zip(inner.layers, cache, strict=True):
            _, keys, values = _projected(layer.self_attn, context)
            part.update_and_fetch(inner.rope(keys, offset=part.offset), values)

    def draft_ahead(
        self,
        forward: Callable[[mx.array, Any], mx.array],
        last: mx.array,
        own: mx.array,
        most: int,
    ) -> mx.array:
        count = most - self.from_anchor
        masks = mx.full((last.shape[0], count), self.inner.config.mask_token_id, last.dtype)
        block = mx.concatenate([last, masks], axis=1)
        states = forward(block, None)
        states = states if self.from_anchor else states[:, 1:]
        return self._tokens(states, last)

    def _tokens(self, states: mx.array, last: mx.array) -> mx.array:
        inner, logits = self.inner, self.inner._logits(states)
        found: mx.array
        match inner:
            case DSparkDraftModel() | DeepseekV4DsparkDraftModel():
                found = inner.markov_head.sample_block(logits, first_prev_tokens=last, sampler=_likeliest)
            case DFlash2DraftModel():
                found = inner.candidate_selector.select(states, logits, last, _likeliest)
            case _:
                found = _likeliest(logits)
        return found.astype(mx.int32)


class LagunaHead(BlockHead):
    """DFlash for Laguna. A token of a block sees what the tokens before it see, too. Its attention is gated."""

    def _sight(self, attention: Any) -> Sight | None:
        return "before" if attention.causal else "whole"

    def share(self, model: nn.Module) -> None:
        whole = getattr(model, "language_model", model)
        self.share_parts(whole.model.embed_tokens, getattr(whole, "lm_head", None))

    def share_parts(self, embed: Any, project: Any) -> None:
        self.inner.embed_tokens, self.inner.lm_head = embed, project or embed.as_linear
        self.inner.embed_scale = getattr(embed, "embed_scale", 1.0)

    def make_cache(self) -> PromptCache:
        return [RotatingKVCache(max_size=self.inner.config.sliding_window) for _ in self.inner.layers]

    def _context(self, states: mx.array) -> mx.array:
        found: mx.array = self.inner._combine_hidden(states)
        return found


class MuseHead(BlockHead):
    """DFlash for Muse Glimmer. A token of a block sees a window before it and one behind it. It uses the model's
    embeddings and projection without the norm and the scale that the model applies."""

    def _sight(self, attention: Any) -> Sight | None:
        return "within"

    def share(self, model: nn.Module) -> None:
        whole = getattr(model, "language_model", model)
        self.share_parts(whole.model.embed_tokens, whole.lm_head)

    def make_cache(self) -> PromptCache:
        # The window does not count the token itself.
        return [RotatingKVCache(max_size=self.inner.config.sliding_window + 1) for _ in self.inner.layers]

    def _context(self, states: mx.array) -> mx.array:
        found: mx.array = self.inner.prepare_target_hidden(states)
        return found


def block_head(inner: Any) -> BlockHead:
    """The drafter for a module of mlx-vlm, other than Gemma's."""
    match inner:
        case LagunaDFlashDraftModel():
            return LagunaHead(inner)
        case MuseGlimmerAssistantDraftModel():
            return MuseHead(inner)
        case _:
            return BlockHead(inner)


def _likeliest(logits: mx.array) -> mx.array:
    return mx.argmax(logits, axis=-1)


def _projected(attention: Any, states: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Queries, keys and values [sequences, heads, count, size] each, normalised and not rotated yet."""
    found: Sequence[mx.array]
    if "qkv_proj" in attention:
        first = attention.n_heads * attention.head_dim
        second = first + attention.n_kv_heads * attention.head_dim
        found = list(mx.split(attention.qkv_proj(states), [first, second], axis=-1))
    elif hasattr(attention, "_project_kv"):
        found = [attention.q_proj(states), *attention._project_kv(states)]
    else:
        found = [attention.q_proj(states), attention.k_proj(states), attention.v_proj(states)]
    counts = (attention.n_heads, attention.n_kv_heads, attention.n_kv_heads)
    norms = (attention.q_norm, attention.k_norm, lambda each: each)
    queries, keys, values = (
        norm(each.reshape(*states.shape[:2], count, -1)).transpose(0, 2, 1, 3)
        for each, count, norm in zip(found, counts, norms, strict=True)
    )
    return queries, keys, values


def seen(mask: mx.array, sight: Sight | None) -> mx.array:
    """The mask [..., block, keys] for what tokens of a block see, from the one for `None`."""
    match sight:
        case "whole":
            return mask.any(axis=-2, keepdims=True)
        case "before":
            return mx.cummax(mask.astype(mx.int32), axis=-2) > 0
        case "within":
            return mx.cummax(mask.astype(mx.int32), axis=-2, reverse=True) > 0
        case None:
            return mask


def _attend_in_rows(attention: Any, sight: Sight | None) -> None:
    """Let an attention of mlx-vlm read the context of each row from the cache, by another method of it."""

    def attend(
        self: Any, x: mx.array, context: None, rope: Any, cache: Any, projected: None = None
    ) -> mx.array:
        rows, count = x.shape[:2]
        window = None if sight == "within" else self.sliding_window  # None: that of the cache
        mask = seen(cache.make_mask(count, return_array=True, window_size=window), sight)
        queries, keys, values = _projected(self, x)
        offset = cache.offset
        queries, keys = rope(queries, offset=offset), rope(keys, offset=offset)
        keys, values = cache.update_and_fetch(keys, values)
        sinks = getattr(self, "attention_sink_bias", None)
        found = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self.scale, mask=mask, sinks=sinks
        ).transpose(0, 2, 1, 3)
        if "g_proj" in self:
            gate = nn.softplus(self.g_proj(x).astype(mx.float32)).astype(found.dtype)
            found = found * gate[..., None]
        projected_found: mx.array = self.o_proj(found.reshape(rows, count, -1))
        return projected_found

    replace_method(attention, "__call__", lambda _: attend, mark="alone")

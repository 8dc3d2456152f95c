"""Qwen 4's index, for which mlx-vlm 0.7.10 counts the tokens of a batch from the end of its longest sequence.

Here each sequence's tokens are counted from its first, and each block of tokens becomes one key, which is kept with
those before it: sequences of different lengths run together and take tokens back. Of blocks with equal scores the
earliest are taken, whatever else is looked at.
"""

import math
from typing import Any, ClassVar

import mlx.core as mx
from mlx_vlm.models.base import LanguageModelOutput, scaled_dot_product_attention
from mlx_vlm.models.cache import ArraysCache, CacheList, KVCache
from mlx_vlm.models.qwen4_exp.language import (
    LanguageModel,
    Qwen4ExpAttention,
    Qwen4ExpModel,
    Qwen4ExpPLELayer,
    Qwen4ExpQSAIndexer,
)

from pippin.engines.language.upstream.caches import PoolingCache
from pippin.engines.language.upstream.mends import exchanged

SCORED = 512  # queries at once: their scores are [batch, heads, queries, blocks]


def attention_cache(attention: Qwen4ExpAttention) -> CacheList:
    """A new cache of one layer of attention: keys and values, and the keys of blocks."""
    return CacheList(KVCache(), PoolingCache(attention.indexer.compress_ratio, overlap=0))


class BatchedLanguageModel(LanguageModel):  # type: ignore[misc] # mlx-vlm has no types
    def make_cache(self) -> list[Any]:
        return [
            ArraysCache(size=4 if "ple" in layer else 2)
            if layer.is_linear
            else attention_cache(layer.self_attn)
            for layer in self.layers
        ]

    def __call__(
        self,
        inputs: mx.array,
        inputs_embeds: mx.array | None = None,
        mask: mx.array | None = None,
        cache: Any | None = None,
        *,
        position_ids: mx.array | None = None,
        **given: Any,
    ) -> LanguageModelOutput:
        """Logits [batch, tokens, vocabulary] in one way for any number of tokens; mlx-vlm has another for one.
        `position_ids` [3, batch, tokens] may be those of a whole prompt, as mlx-vlm's own loop gives them."""
        if given.get("rope_deltas") is not None:
            self._rope_deltas = given["rope_deltas"]
        count = inputs.shape[1]
        if position_ids is None or position_ids.shape[-1] > count:
            start = 0 if cache is None else cache[self.model.fa_idx][0].offset
            position_ids = self._positions(position_ids, start, count)
        states = self.model(inputs, inputs_embeds=inputs_embeds, cache=cache, position_ids=position_ids)
        tied = self.args.tie_word_embeddings
        return LanguageModelOutput(
            logits=self.model.embed_tokens.as_linear(states) if tied else self.lm_head(states)
        )

    def _positions(self, known: mx.array | None, start: int, count: int) -> mx.array:
        """The positions of a prompt's tokens from `start` on: out of the known ones, or as the last prompt's media
        shift the tokens after it."""
        if known is not None:
            return known[..., start : start + count]
        shift = 0 if self._rope_deltas is None else self._rope_deltas.reshape(-1, 1)
        return mx.arange(start, start + count)[None] + shift


class BatchedModel(Qwen4ExpModel):  # type: ignore[misc]
    def __call__(
        self,
        inputs: mx.array,
        inputs_embeds: mx.array | None = None,
        mask: mx.array | None = None,
        cache: Any | None = None,
        position_ids: mx.array | None = None,
        **given: Any,
    ) -> mx.array:
        """States [batch, tokens, hidden] of all sequences at once. Each layer of attention makes its own mask."""
        hidden = self.embed_tokens(inputs) if inputs_embeds is None else inputs_embeds
        hidden = mx.tile(hidden, (1, 1, self.args.hc_count))
        for layer, own in zip(self.layers, cache or [None] * len(self.layers), strict=True):
            hidden = layer(hidden, inputs, mask=None, cache=own, position_ids=position_ids)
        mixed: mx.array = self.hyper_connection_mixer(hidden)
        return mixed


class Attention(Qwen4ExpAttention):  # type: ignore[misc]
    """Attention to the blocks of tokens that the index chooses, and to the tokens after the last whole block."""

    def __call__(
        self,
        x: mx.array,
        mask: mx.array | str | None = None,
        cache: Any | None = None,
        position_ids: mx.array | None = None,
        position_embeddings: Any = None,
    ) -> mx.array:
        """`position_ids` [3, batch, tokens], or without the first axis where all three are alike."""
        keys_and_values, pooled = attention_cache(self) if cache is None else cache
        batch, count, _ = x.shape
        if position_ids is None:
            starts = mx.array(keys_and_values.offset).reshape(-1, 1)
            position_ids = starts + mx.arange(count)
        position_ids = mx.broadcast_to(position_ids, (3, batch, count))
        blocks = self.indexer(x, pooled, position_ids)
        mask = self._mask(blocks, keys_and_values, count)
        queries, keys, values, gate, _ = self._prepare_projected_qkv(
            self.q_proj(x), self.k_proj(x), self.v_proj(x), keys_and_values, position_ids, None, None
        )
        output = scaled_dot_product_attention(
            queries, keys, values, cache=keys_and_values, scale=self.scale, mask=mask
        )
        output = output.transpose(0, 2, 1, 3).reshape(batch, count, -1)
        projected: mx.array = self.o_proj(output * mx.sigmoid(gate))
        return projected

    def _mask(self, blocks: mx.array | None, cache: Any, count: int) -> mx.array | str | None:
        """Which tokens each query attends to, by the blocks that it may [batch, queries, blocks]."""
        if blocks is None:
            plain: mx.array | str | None = cache.make_mask(count, return_array=False, window_size=None)
            return plain
        earlier = cache.make_mask(count, return_array=True, window_size=None)
        reach = cache.offset + count if earlier is None else earlier.shape[-1]
        chosen = mx.repeat(blocks, self.indexer.compress_ratio, axis=-1)
        after = mx.ones((*chosen.shape[:2], reach - chosen.shape[2]), mx.bool_)
        chosen = mx.concatenate([chosen, after], axis=-1)[:, None]
        return chosen if earlier is None else chosen & earlier


class Indexer(Qwen4ExpQSAIndexer):  # type: ignore[misc]
    """Chooses blocks of tokens. A block's key is the mean of its tokens' keys, at the position of the first of them."""

    def __call__(self, x: mx.array, pooled: Any, position_ids: mx.array) -> mx.array | None:
        """Whether each query may attend to each block [batch, queries, blocks]: the chosen ones, and those that are not
        whole before it. None where all whole blocks are chosen."""
        batch, count, _ = x.shape
        projected = self.index_qk_proj(x).reshape(batch, count, -1, self.head_dim)
        queries, keys = projected[:, :, : self.n_heads], projected[:, :, self.n_heads]
        places = position_ids.transpose(1, 2, 0).astype(mx.int32)
        ready = pooled.accumulate_windows(keys, places, 0)[:2]
        blocks = pooled.update_and_fetch(self._keys_of(*ready))
        if blocks.shape[1] <= self.block_topk:
            return None
        mask = pooled.make_mask(count)
        seen = mx.broadcast_to(mx.array(True) if mask is None else mask, (batch, count, blocks.shape[1]))
        queries = self._apply_rope(self.q_layernorm(queries).transpose(0, 2, 1, 3), position_ids)
        return self._chosen(queries.astype(mx.float32), blocks.astype(mx.float32), seen) | ~seen

    def _keys_of(self, keys: mx.array, places: mx.array) -> mx.array:
        """The keys of blocks [batch, blocks, size], of their tokens' [batch, tokens, size] and positions."""
        batch, tokens, size = keys.shape
        if not tokens:
            return keys
        means = keys.reshape(batch, -1, self.compress_ratio, size).astype(mx.float32).mean(axis=2)
        first = places[:, :: self.compress_ratio].transpose(2, 0, 1)
        rotated: mx.array = self._apply_rope(self.k_layernorm(means.astype(keys.dtype))[:, None], first)
        return rotated[:, 0]

    def _chosen(self, queries: mx.array, blocks: mx.array, seen: mx.array) -> mx.array:
        """Whether each block is among those of highest scores that a query sees, [batch, queries, blocks]."""
        found = []
        for start in range(0, queries.shape[2], SCORED):
            part = slice(start, start + SCORED)
            scores = mx.maximum(queries[:, :, part] @ blocks[:, None].swapaxes(-1, -2), 0).sum(axis=1)
            scores = mx.where(seen[:, part], scores / math.sqrt(self.head_dim), -mx.inf)
            # Sorting keeps the order of equals, which a partition does not.
            best = mx.argsort(-scores, axis=-1)[..., : self.block_topk]
            found.append(mx.put_along_axis(mx.zeros(scores.shape, mx.bool_), best, mx.array(True), axis=-1))
        return mx.concatenate(found, axis=1)


class WordPairs(Qwen4ExpPLELayer):  # type: ignore[misc]
    """What embeds the last few tokens. It writes the state of a convolution beside those tokens."""

    replayed_whole: ClassVar[bool] = True


MENDS = (
    exchanged(
        BatchedLanguageModel,
        "one token goes through the model in another way than several, and its caches are for one length",
        kind="batching",
    ),
    exchanged(BatchedModel, "one mask is made for the layers of attention", kind="batching"),
    exchanged(Attention, "the chosen blocks are those of one length", kind="batching"),
    exchanged(Indexer, "tokens are counted from the end of the longest sequence", kind="batching"),
    exchanged(
        WordPairs,
        "it does not say that it writes the state of a convolution beside the last tokens",
        kind="batching",
    ),
)

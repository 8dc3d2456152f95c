"""GLM 5 Next's index, which mlx-vlm 0.7.10 counts from the end of the longest sequence of a batch.

Here each sequence's tokens are counted from its first, which its caches tell, so that sequences of different lengths
run together. Of tokens with equal scores the earliest are taken, whatever else is looked at.
"""

from typing import Any, ClassVar

import mlx.core as mx
from mlx_vlm.models.base import LanguageModelOutput
from mlx_vlm.models.cache import ArraysCache, CacheList, KVCache
from mlx_vlm.models.glm5_next.language import (
    Glm5NextAttention,
    Glm5NextIndexer,
    Glm5NextLinearAttention,
    LanguageModel,
    _score_index_keys,
)

from pippin.engines.language.upstream.caches import PoolingCache
from pippin.engines.language.upstream.mends import exchanged

SCORED = 512  # queries at once, as in mlx-vlm: scores are [batch, queries, heads, entries]


class BatchedLanguageModel(LanguageModel):  # type: ignore[misc] # mlx-vlm has no types
    def make_cache(self) -> list[Any]:
        return [
            ArraysCache(size=2)
            if layer.block_type == "linear_attention"
            else attention_cache(layer.self_attn)
            for layer in self.layers
        ]

    def __call__(
        self,
        inputs: mx.array | None = None,
        cache: Any | None = None,
        inputs_embeds: mx.array | None = None,
        *,
        skip_logits: bool = False,
        **given: Any,
    ) -> LanguageModelOutput:
        """Projects the states of all tokens in one call, from which draft heads start; mlx-vlm does it one by one."""
        states = given.pop("hidden_sink", None)
        states = [] if states is None else states
        found = super().__call__(inputs, cache, inputs_embeds, skip_logits=True, hidden_sink=states, **given)
        if not skip_logits:
            last = states[-1][:, -given.get("num_logits_to_keep", 0) :]
            tied = self.args.tie_word_embeddings
            found.logits = self.model.embed_tokens.as_linear(last) if tied else self.lm_head(last)
        return found


def attention_cache(attention: Glm5NextAttention) -> CacheList:
    """A new cache of one layer of attention: latent vectors, and the keys of its index if it has one."""
    if attention.indexer is None:
        return CacheList(KVCache())
    return CacheList(KVCache(), PoolingCache(attention.indexer.index_kpool, overlap=0))


class Attention(Glm5NextAttention):  # type: ignore[misc]
    """Keeps no projections of a prompt's latent vectors beside them: it projects them again for each chunk."""

    def __call__(
        self,
        x: mx.array,
        padding_mask: mx.array | None = None,
        cache: Any | None = None,
        prev_topk_indices: mx.array | None = None,
        last_only: bool = False,
    ) -> tuple[mx.array, mx.array]:
        # In mlx-vlm's order: latent vectors, which tokens are padding (there is none here), pooled keys, projections.
        parts = None
        if cache is not None:
            parts = [cache[0], None] if self.indexer is None else [cache[0], None, cache[1], None]
        found: tuple[mx.array, mx.array] = super().__call__(
            x, padding_mask, parts, prev_topk_indices, last_only
        )
        return found


class Indexer(Glm5NextIndexer):  # type: ignore[misc]
    """Chooses the tokens that each query attends to: those of the best entries, and those after the last entry."""

    def __call__(
        self,
        x: mx.array,
        q_resid: mx.array,
        padding_mask: mx.array | None = None,
        cache: Any | None = None,
        pool_cache: Any | None = None,
        offset: int | mx.array = 0,
    ) -> mx.array:
        """Positions [batch, queries, chosen], -1 for none. `offset` is each sequence's number of earlier tokens."""
        if pool_cache is None:
            pool_cache = PoolingCache(self.index_kpool, overlap=0)
        batch, count, _ = x.shape
        keys, gates = self._project_keys(x)
        ready = pool_cache.accumulate_windows(keys, gates.astype(keys.dtype), offset)[:2]
        entries = pool_cache.update_and_fetch(self._compress_pools(*ready))
        mask = pool_cache.make_mask(count, offset)
        seen = mx.broadcast_to(mx.array(True) if mask is None else mask, (batch, count, entries.shape[1]))
        chosen = self._tokens_of(self._best(x, q_resid, entries, seen), seen)
        if self.always_select_tail and self.index_kpool > 1:
            visible = mx.array(offset).reshape(-1, 1) + mx.arange(1, count + 1)
            after = (visible % self.index_kpool)[..., None]
            place = mx.arange(self.index_kpool - 1)
            tail = mx.where(place < after, visible[..., None] - after + place, -1)
            chosen = mx.concatenate([chosen, mx.broadcast_to(tail, (batch, *tail.shape[1:]))], axis=-1)
        return chosen.astype(mx.int32)

    def _best(self, x: mx.array, q_resid: mx.array, entries: mx.array, seen: mx.array) -> mx.array:
        """The entries [batch, queries, chosen] of highest scores for each query, among those that it sees."""
        most = self.index_topk // self.index_kpool
        if entries.shape[1] <= most:
            return mx.broadcast_to(mx.arange(entries.shape[1]), seen.shape)
        queries, weights = self._project_queries(x, q_resid)
        found = []
        for start in range(0, x.shape[1], SCORED):
            part = slice(start, start + SCORED)
            scores = _score_index_keys(queries[:, part], entries, weights[:, part], self.softmax_scale)
            scores = mx.where(seen[:, part], scores, -mx.inf)
            # Sorting keeps the order of equals, which a partition does not.
            found.append(mx.argsort(-scores, axis=-1)[..., :most])
        return mx.sort(mx.concatenate(found, axis=1), axis=-1)

    def _tokens_of(self, entries: mx.array, seen: mx.array) -> mx.array:
        """The positions of the tokens in these entries, in as many places as there are at most."""
        batch, count, chosen = entries.shape
        valid = mx.take_along_axis(seen, entries, axis=-1)[..., None]
        places = entries[..., None] * self.index_kpool + mx.arange(self.index_kpool)
        tokens = mx.where(valid, places, -1).reshape(batch, count, chosen * self.index_kpool)
        return mx.pad(tokens, [(0, 0), (0, 0), (0, self.index_topk - tokens.shape[-1])], constant_values=-1)


class LinearAttention(Glm5NextLinearAttention):  # type: ignore[misc]
    """A linear attention that keeps a recurrent state beside that of its convolution: both are replayed whole."""

    replayed_whole: ClassVar[bool] = True


MENDS = (
    exchanged(
        BatchedLanguageModel,
        "its caches are for one length, and it projects the states of a prompt's tokens one by one",
        kind="batching",
    ),
    exchanged(Attention, "projections of latent vectors are kept for one sequence alone", kind="batching"),
    exchanged(Indexer, "tokens are counted from the end of the longest sequence", kind="batching"),
    exchanged(
        LinearAttention,
        "it does not say that it writes a state beside that of its convolution",
        kind="batching",
    ),
)

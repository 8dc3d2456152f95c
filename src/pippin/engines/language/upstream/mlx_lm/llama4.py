"""Llama 4 for sequences of different length: mlx-lm 0.32 makes its masks of chunks, and scales its queries by their
positions, for one length alone."""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache
from mlx_lm.models.llama4 import Attention, LlamaModel, Model

from pippin.engines.language.kv_cache.kinds.chunked import ChunkCache
from pippin.engines.language.kv_cache.slots import PromptCache
from pippin.engines.language.upstream.llama4 import of_any_positions, sees_chunk, through_layers
from pippin.engines.language.upstream.mends import Mend, to


class WithChunks(Model):  # type: ignore[misc] # mlx-lm has no types
    def make_cache(self) -> PromptCache:
        size = self.args.text_config.attention_chunk_size
        return [ChunkCache(size) if sees_chunk(place) else KVCache() for place in range(len(self.layers))]


class OfAnyLengths(LlamaModel):  # type: ignore[misc]
    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        if cache is None:
            alone: mx.array = super().__call__(inputs)
            return alone
        return through_layers(self, self.embed_tokens(inputs), cache)


MENDS = (
    Mend(
        original=Model,
        kind="batching",
        why="its caches of chunks do not say what a token sees",
        loaded=to(WithChunks),
    ),
    Mend(
        original=LlamaModel,
        kind="batching",
        why="masks of chunks are made for one length",
        loaded=to(OfAnyLengths),
    ),
    Mend(
        original=Attention,
        kind="batching",
        why="queries are scaled by positions that are one number for all sequences",
        loaded=to(of_any_positions(Attention)),
    ),
)

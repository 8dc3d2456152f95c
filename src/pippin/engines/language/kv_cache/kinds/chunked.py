"""Chunked attention: the text is cut into chunks of one length, and a token sees those before it in its own chunk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import mlx.core as mx
from mlx_lm.models.cache import ChunkedKVCache

from pippin.engines.language.kv_cache.kinds.attention import Mask
from pippin.engines.language.kv_cache.kinds.base import TokenArray
from pippin.engines.language.kv_cache.kinds.local import LocalKind


class ChunkCache(ChunkedKVCache):  # type: ignore[misc] # mlx-lm has no types
    """A prompt's cache that says what a token sees, for models that ask it (`upstream/mlx_lm/llama4.py`). mlx-lm's
    leaves that to the model, for one sequence alone.

    It keeps the last token's chunk, where mlx-lm's keeps as many tokens as a chunk has, most of which nobody sees.
    """

    keys: Any
    values: Any
    offset: int
    chunk_size: int
    start_position: int

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        stop = self.offset + N
        span = min(window_size or self.chunk_size, self.chunk_size)
        if stop <= span and not return_array:
            return None if N == 1 else "causal"
        keys, queries = mx.arange(self.first_kept, stop), mx.arange(self.offset, stop)[:, None]
        return (keys <= queries) & seen(keys, queries, span, self.chunk_size)

    @property
    def first_kept(self) -> int:
        """The index of the oldest token that is kept once others are added."""
        return max(self.start_position, (self.offset - 1) // self.chunk_size * self.chunk_size)

    def maybe_trim_front(self) -> None:
        first, stop = self.first_kept, self.offset - self.start_position
        if first > self.start_position:
            start = first - self.start_position
            self.keys, self.values = self.keys[..., start:stop, :], self.values[..., start:stop, :]
            self.start_position = first

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        self.maybe_trim_front()
        return super().update_and_fetch(keys, values)


def seen(keys: mx.array, queries: mx.array, span: int, chunk: int) -> mx.array:
    """Whether tokens with the indexes `queries` see earlier ones with the indexes `keys`, no more than `span` away."""
    return (keys > queries - span) & (keys // chunk == queries // chunk)


@dataclass(frozen=True, kw_only=True)
class ChunkedKind(LocalKind):
    """A ring that a whole chunk fits into has room for all that a token sees, wherever its chunk began."""

    serves = (ChunkCache,)
    twins = ("ChunkedKVCache",)

    @classmethod
    def of(cls, cache: Any) -> Self:
        return cls(keys=TokenArray.of(cache.keys), values=TokenArray.of(cache.values), span=cache.chunk_size)

    @classmethod
    def like(cls, cache: Any, beside: Sequence[Any]) -> ChunkCache:
        return ChunkCache(cache.chunk_size)

    def presize(self, cache: Any, tokens: int) -> None:
        cache.step = 1  # each chunk of a prompt makes room for its own tokens: those before are copied anyhow

    def seen(self, keys: mx.array, queries: mx.array, span: int) -> mx.array:
        return seen(keys, queries, span, self.span)

    def first_seen(self, stop: int) -> int:
        """Where the chunk of the last token begins."""
        return max(stop - 1, 0) // self.span * self.span

    def new(self) -> ChunkCache:
        return ChunkCache(self.span)

    def ordered(self, cache: Any) -> Sequence[mx.array]:
        found: Sequence[mx.array] = cache.keys_and_values()
        return found

    def put(self, cache: Any, arrays: Sequence[mx.array | None], stop: int) -> None:
        cache.keys, cache.values = arrays
        cache.offset = stop
        cache.start_position = stop - (0 if cache.keys is None else cache.keys.shape[2])


KIND = ChunkedKind

"""Sliding attention: a token sees as many before it, wherever it stands, and only those are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache

from pippin.engines.language.kv_cache.kinds.attention import BatchedAttention, Mask
from pippin.engines.language.kv_cache.kinds.base import CacheKind, SlotTable, Snapshot, TokenArray


@dataclass(frozen=True, kw_only=True)
class SlidingKind(CacheKind):
    serves = (RotatingKVCache,)

    keys: TokenArray
    values: TokenArray
    span: int  # tokens that a token attends to at most, itself among them
    sinks: int  # first tokens of a sequence that are attended to for ever

    @classmethod
    def of(cls, cache: Any) -> Self:
        keys, values = TokenArray.of(cache.keys), TokenArray.of(cache.values)
        return cls(keys=keys, values=values, span=cache.max_size, sinks=cache.keep)

    @classmethod
    def like(cls, cache: Any, beside: Sequence[Any]) -> RotatingKVCache:
        return RotatingKVCache(max_size=cache.max_size, keep=cache.keep)

    @property
    def batches(self) -> bool:
        return self.sinks == 0

    def slot_bytes(self, capacity: int, slack: int) -> int:
        return (self.keys.token_bytes + self.values.token_bytes) * min(capacity, self.span + slack)

    def batched(self, slots: SlotTable) -> "BatchedRing":
        return BatchedRing(slots, self)

    def snapshot(self, cache: Any) -> Snapshot:
        if cache.keys is None:
            return None, None
        kept = min(cache.offset, self.span)
        return tuple(mx.contiguous(array[:, :, array.shape[2] - kept :]) for array in in_order(cache))

    def restore(self, cache: Any, snapshot: Snapshot, tokens: int) -> None:
        put(cache, [None if array is None else array[:] for array in snapshot], tokens)


KIND = SlidingKind


def in_order(cache: RotatingKVCache) -> tuple[mx.array, mx.array]:
    """Keys and values in a sequence's own cache, the oldest token first: at least those that are kept."""
    return cache._temporal_order(cache.keys), cache._temporal_order(cache.values)


def put(cache: RotatingKVCache, arrays: Sequence[mx.array | None], stop: int) -> None:
    """Give a new cache the keys and values of the last tokens before position `stop`, or None for none."""
    cache.keys, cache.values = arrays
    cache.offset, cache._idx = stop, 0 if cache.keys is None else cache.keys.shape[2]


class BatchedRing(BatchedAttention):
    """Keys and values as a ring: the token with index p lies at p modulo the ring's size.

    The ring has the table's slack beside the span, so that as many tokens can be added at once, and forgotten again. A
    sequence can be viewed as of that many tokens before its end.
    """

    def __init__(self, slots: SlotTable, kind: SlidingKind) -> None:
        super().__init__(slots)
        self.span = kind.span
        self.ring: int = kind.span + slots.slack

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        span = self.span if window_size is None else min(window_size, self.span)
        if self.slots.level and not return_array and self.slots.longest + self.slots.count <= span:
            return None if N == 1 else "causal"
        positions = self._positions(N)
        last = positions[:, -1:]
        # Of each place in the ring, how many tokens ago it was written.
        ages = (last - mx.arange(self._reach())) % self.ring
        keys = (last - ages)[:, None]
        queries = positions[..., None]
        mask = (keys >= 0) & (keys <= queries) & (keys > queries - span)
        return mask[:, None]

    def store(self, slot: int, cache: Any) -> None:
        if cache.keys is None:
            return
        keys, values = in_order(cache)
        kept = min(keys.shape[2], self.ring)
        keys, values = keys[:, :, keys.shape[2] - kept :], values[:, :, values.shape[2] - kept :]
        start = (cache.offset - kept) % self.ring
        head = min(kept, self.ring - start)
        self.write(slot, keys[:, :, :head], values[:, :, :head], start)
        if head < kept:
            self.write(slot, keys[:, :, head:], values[:, :, head:], 0)

    def view(self, slot: int, stop: int) -> Any:
        places = mx.arange(max(stop - self.span, 0), stop) % self.ring
        cache = RotatingKVCache(max_size=self.span)
        put(cache, [mx.take(buffer[slot : slot + 1], places, axis=2) for buffer in self.buffers], stop)
        return cache

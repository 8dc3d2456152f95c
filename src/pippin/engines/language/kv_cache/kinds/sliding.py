"""Sliding attention: keys and values of the last tokens alone."""

from dataclasses import dataclass
from typing import Any, Self

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache

from pippin.engines.language.kv_cache.kinds.base import CacheKind, InPlace, Snapshot, TokenArray
from pippin.engines.language.kv_cache.kinds.keys_and_values import BatchedAttention, Mask
from pippin.engines.language.kv_cache.slots import SlotTable


@dataclass(frozen=True, kw_only=True)
class SlidingKind(CacheKind):
    serves = (RotatingKVCache,)
    rewinds = checkpoints = looks_back = True

    keys: TokenArray
    values: TokenArray
    span: int  # tokens that a token attends to, itself among them
    sinks: int  # first tokens of a sequence that are attended to for ever

    @classmethod
    def of(cls, cache: Any) -> Self:
        return cls(
            keys=TokenArray.of(cache.keys),
            values=TokenArray.of(cache.values),
            span=cache.max_size,
            sinks=cache.keep,
        )

    @classmethod
    def like(cls, cache: Any) -> RotatingKVCache:
        return RotatingKVCache(max_size=cache.max_size, keep=cache.keep)

    @property
    def batches(self) -> bool:
        return self.sinks == 0

    def slot_bytes(self, capacity: int, slack: int) -> int:
        return (self.keys.token_bytes + self.values.token_bytes) * min(capacity, self.span + slack)

    def prompt_bytes(self, capacity: int, chunk: int) -> int:
        return self.slot_bytes(capacity, chunk)  # the newest chunk lies beside what it attends to

    def batched(self, slots: SlotTable) -> "BatchedSliding":
        return BatchedSliding(slots, self.span)

    @classmethod
    def opened(cls, cache: Any, token: TokenArray, shape: tuple[int, int]) -> list[InPlace]:
        # mlx-lm makes the place: one token goes around in what is there, more come after what the first of them sees.
        rows, count = shape
        start = cache.offset
        cache.update_and_fetch(token.zeros(rows, count), token.zeros(rows, count))
        capacity = cache.keys.shape[2]
        # The last token lies before the index where the next one would.
        shift = (cache._idx - cache.offset) % capacity
        arrays = [cache.keys, cache.values]
        return [InPlace(arrays=arrays, starts=[start] * rows, count=count, shift=shift)]

    def snapshot(self, cache: Any) -> Snapshot:
        if cache.keys is None:
            return None, None
        ordered = (cache._temporal_order(cache.keys), cache._temporal_order(cache.values))
        kept = min(cache.offset, cache.max_size)
        return tuple(mx.contiguous(array[:, :, array.shape[2] - kept :]) for array in ordered)

    def restore(self, cache: Any, snapshot: Snapshot, tokens: int) -> None:
        cache.keys, cache.values = (None if array is None else array[:] for array in snapshot)
        cache.offset, cache._idx = tokens, 0 if cache.keys is None else cache.keys.shape[2]


KIND = SlidingKind


class BatchedSliding(BatchedAttention):
    """Keys and values as a ring: the token with index p lies at p modulo the ring's size.

    The ring has the table's slack beside the span, so that as many tokens can be added at once, and forgotten again.
    """

    def __init__(self, slots: SlotTable, span: int) -> None:
        super().__init__(slots)
        self.span = span
        self.ring = span + slots.slack

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        slots = self.slots
        span = self.span if window_size is None else min(window_size, self.span)
        total = slots.longest + slots.count
        if slots.level and not return_array and (total <= span or (N == 1 and self.ring == span)):
            return None if N == 1 else "causal"
        positions = self._positions(N)
        last = positions[:, -1:]
        # Of each place in the ring, how many tokens ago it was written.
        ages = (last - mx.arange(self._reach())) % self.ring
        keys = (last - ages)[:, None]
        queries = positions[..., None]
        mask = (keys >= 0) & (keys <= queries) & (keys > queries - span)
        return mask[:, None]

    def _reach(self) -> int:
        return min(super()._reach(), self.ring)

    def _size(self, capacity: int) -> int:
        return min(capacity, self.ring)

    def _at(self, index: Any) -> Any:
        return index % self.ring

    def _in_pieces(self) -> bool:
        return self.slots.count == 1 and super()._in_pieces()

    def store(self, slot: int, cache: Any) -> None:
        if cache.keys is None:
            return
        keys, values = cache._temporal_order(cache.keys), cache._temporal_order(cache.values)
        kept = min(keys.shape[2], self.ring)
        keys, values = keys[:, :, keys.shape[2] - kept :], values[:, :, values.shape[2] - kept :]
        start = (cache.offset - kept) % self.ring
        head = min(kept, self.ring - start)
        self.write(slot, keys[:, :, :head], values[:, :, :head], start)
        if head < kept:
            self.write(slot, keys[:, :, head:], values[:, :, head:], 0)

    def view(self, slot: int, stop: int) -> RotatingKVCache:
        """What position `stop` attends to, oldest first."""
        places = mx.arange(max(stop - self.span, 0), stop) % self.ring
        cache = RotatingKVCache(max_size=self.span)
        cache.keys, cache.values = (buffer[slot : slot + 1][:, :, places] for buffer in self.buffers)
        cache.offset, cache._idx = stop, cache.keys.shape[2]
        return cache

"""Sliding attention: a token sees as many before it, wherever it stands."""

from dataclasses import dataclass
from typing import Any, Self

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache

from pippin.engines.language.kv_cache.kinds.base import Snapshot, TokenArray
from pippin.engines.language.kv_cache.kinds.local import BatchedLocal, LocalKind
from pippin.engines.language.kv_cache.slots import SlotTable


@dataclass(frozen=True, kw_only=True)
class SlidingKind(LocalKind):
    serves = (RotatingKVCache,)

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

    def batched(self, slots: SlotTable) -> "BatchedSliding":
        return BatchedSliding(slots, self.span)

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


class BatchedSliding(BatchedLocal):
    def _sees_all(self, count: int, span: int) -> bool:
        return super()._sees_all(count, span) or (count == 1 and self.ring == span)

    def _seen(self, keys: mx.array, queries: mx.array, span: int) -> mx.array:
        return keys > queries - span

    def store(self, slot: int, cache: Any) -> None:
        if cache.keys is not None:
            keys, values = cache._temporal_order(cache.keys), cache._temporal_order(cache.values)
            self._write_last(slot, keys, values, cache.offset)

    def view(self, slot: int, stop: int) -> RotatingKVCache:
        """What position `stop` attends to, oldest first."""
        cache = RotatingKVCache(max_size=self.span)
        cache.keys, cache.values = self._between(slot, max(stop - self.span, 0), stop)
        cache.offset, cache._idx = stop, cache.keys.shape[2]
        return cache

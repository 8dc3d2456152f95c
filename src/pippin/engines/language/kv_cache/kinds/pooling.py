"""Pooled keys (DeepSeek V4, GLM 5 Next, Qwen 4): each `ratio` tokens become an entry, which later tokens can attend to.

An entry is a mean of its tokens' vectors, weighted by gates that are computed with them. Qwen 4 weights all alike; what
is kept here as gates are its tokens' positions, for an entry is rotated by that of its first. In DeepSeek V4, where the
ratio is 4, an entry has vectors of the 4 tokens before in it too (its report, section 2.3.1), which mlx-vlm's own cache
forgets between two calls: answers would depend on how a prompt was cut. Here the tokens before are kept and their
entry is computed again, so that all ways to cut a text give what one pass over all of it does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache

from pippin.engines.language.kv_cache.kinds.attention import enlarged
from pippin.engines.language.kv_cache.kinds.base import (
    BatchedCache,
    CacheKind,
    SlotTable,
    Snapshot,
    TokenArray,
)
from pippin.engines.language.upstream.caches import PoolingCache

OVERLAPPED = 4
"""The ratio at which entries of DeepSeek V4 have the tokens of two in them (mlx-vlm's `Compressor.overlap`)."""


@dataclass(frozen=True, kw_only=True)
class PoolingKind(CacheKind):
    serves: ClassVar[tuple[type, ...]] = (PoolingCache,)

    ratio: int
    overlap: int
    vector: TokenArray
    gate: TokenArray

    @classmethod
    def of(cls, cache: PoolingCache) -> Self:
        assert cache.tail is not None  # the model has run
        kv, gate = cache.tail
        return cls(
            ratio=cache.ratio,
            overlap=cache.overlap,
            vector=TokenArray(1, kv.shape[2], kv.dtype),
            gate=TokenArray(1, gate.shape[2], gate.dtype),
        )

    @classmethod
    def like(cls, cache: Any, beside: Sequence[Any]) -> Any:
        # GLM 5 Next has caches of its own (`upstream/mlx_vlm`): it pools keys in another way, beside full attention.
        if not any(type(each).__name__ == RotatingKVCache.__name__ for each in beside):
            return cache
        return PoolingCache(cache.ratio, int(cache.ratio == OVERLAPPED))

    @property
    def entry(self) -> TokenArray:
        return TokenArray(1, self.vector.size // (1 + self.overlap), self.vector.dtype)

    def entries(self, capacity: int) -> int:
        """Places for entries of so many tokens, with one for what nobody reads."""
        return capacity // self.ratio + 1

    def ring(self, slack: int) -> int:
        """Tokens whose vectors are kept."""
        return (1 + self.overlap) * self.ratio + slack

    def slot_bytes(self, capacity: int, slack: int) -> int:
        of_ring = (self.vector.token_bytes + self.gate.token_bytes) * self.ring(slack)
        return self.entry.token_bytes * self.entries(capacity) + of_ring

    def prompt_bytes(self, capacity: int, chunk: int) -> int:
        # The entries lie there twice while some are added.
        return 2 * self.slot_bytes(capacity, chunk)

    def batched(self, slots: SlotTable) -> "BatchedPooling":
        return BatchedPooling(slots, self)

    def snapshot(self, cache: PoolingCache) -> Snapshot:
        kv, gate = cache.tail or (None, None)
        return tuple(None if each is None else mx.contiguous(each) for each in (kv, gate, cache.pooled))

    def restore(self, cache: PoolingCache, snapshot: Snapshot, tokens: int) -> None:
        kv, gate, cache.pooled = (None if array is None else array[:] for array in snapshot)
        cache.tail = None if kv is None or gate is None else (kv, gate)
        cache.tokens = tokens


KIND = PoolingKind


class _Closing(NamedTuple):
    """The entries that are being made of tokens that were just added."""

    first: list[int]  # of each computed slot, the index of its first new entry
    made: list[int]  # of each computed slot, how many there are


class BatchedPooling(BatchedCache):
    """Entries [slots, 1, places, size], and vectors and gates of the last tokens, [slots, 1, ring, size] each: the
    token with index p lies at p modulo the ring's size.

    The ring has the table's slack beside what the next entry needs, so that a sequence can be rewound by as much. What
    it had made of tokens that are forgotten is hidden by masks, and written over.
    """

    def __init__(self, slots: SlotTable, kind: PoolingKind) -> None:
        super().__init__(slots)
        self._kind = kind
        self._overlap = kind.overlap
        self._ring = kind.ring(slots.slack)
        self._rings: list[mx.array] = []
        self._entries: mx.array | None = None
        self._step = 0  # the last step in which tokens came
        self._added = 0  # tokens of that step that came: models of mlx-vlm give short steps one by one
        self._closing = _Closing([], [])

    # What models ask for.

    def accumulate_windows(
        self, kv: mx.array, gate: mx.array, offset: Any
    ) -> tuple[mx.array, mx.array, mx.array | int]:
        """See `PoolingCache`. Slots that can make fewer entries than another get some that `update_and_fetch` drops."""
        slots, ratio, count = self.slots, self._kind.ratio, kv.shape[1]
        if self._step != slots.step:
            self._step, self._added = slots.step, 0
        starts = [length + self._added for length in slots.lengths[slots.low : slots.high]]
        self._added += count
        self._allot()
        rows = mx.arange(slots.low, slots.high)[:, None]
        places = (mx.array(starts)[:, None] + mx.arange(count)) % self._ring
        for ring, new in zip(self._rings, (kv, gate), strict=True):
            ring[rows, 0, places] = new
        first = [start // ratio for start in starts]
        self._closing = _Closing(
            first, [(start + count) // ratio - each for start, each in zip(starts, first, strict=True)]
        )
        most = max(self._closing.made)
        if not most:
            return kv[:, :0], gate[:, :0], 0
        begin = mx.array([(each - self._overlap) * ratio for each in first])
        tokens = begin[:, None] + mx.arange((most + self._overlap) * ratio)
        found = [ring[rows, 0, tokens % self._ring] for ring in self._rings]
        if self._overlap and not all(first):
            # Nothing of what would be before a sequence's first token counts in its first entry.
            gate, into_next = found[1], mx.arange(found[1].shape[2]) < found[1].shape[2] // 2
            found[1] = mx.where((tokens < 0)[..., None] & into_next, mx.array(-mx.inf, gate.dtype), gate)
        return found[0], found[1], begin

    def update_and_fetch(self, pooled: mx.array) -> mx.array:
        slots = self.slots
        assert self._entries is not None  # tokens came before
        if pooled.shape[1]:
            new = pooled[:, self._overlap :]
            first, made = (mx.array(each)[:, None] for each in self._closing)
            number = mx.arange(new.shape[1])
            unread = self._entries.shape[2] - 1
            places = mx.where(number < made, first + number, unread)
            self._entries[mx.arange(slots.low, slots.high)[:, None], 0, places] = new
        return self._entries[slots.low : slots.high, 0, : self._reach()]

    def make_mask(self, L: int = 1, offset: Any = 0) -> mx.array:
        """Which entries the last tokens see, [computed slots, tokens, entries]; [1, ...] where all are equally long."""
        slots = self.slots
        # A mask of the window beside it, with which models join it, has one for all then too.
        stop = slots.low + 1 if slots.level else slots.high
        lengths = mx.array(slots.lengths[slots.low : stop])[:, None]
        seen = (lengths + mx.arange(self._added - L + 1, self._added + 1)) // self._kind.ratio
        return mx.arange(self._reach()) < seen[..., None]

    def _reach(self) -> int:
        """Entries of the sequence that has most."""
        return max(map(sum, zip(*self._closing, strict=True)))

    # What its group asks for.

    def _allot(self) -> None:
        if self._entries is None:
            kind, count = self._kind, len(self.slots.lengths)
            self._rings = [each.zeros(count, self._ring) for each in (kind.vector, kind.gate)]
            self._entries = kind.entry.zeros(count, kind.entries(self.slots.capacity))

    def store(self, slot: int, cache: PoolingCache) -> None:
        if cache.tail is None:
            return
        length = cache.tail[0].shape[1]
        self._put(slot, cache.tail, cache.tokens - length, cache.pooled)

    def adopt(self, slot: int, other: "BatchedPooling", theirs: int) -> None:
        stop = other.slots.lengths[theirs]
        if other._entries is None or not stop:
            return
        start = max(stop - self._ring, 0)
        places = mx.arange(start, stop) % self._ring
        tail = [ring[theirs : theirs + 1, 0, places] for ring in other._rings]
        entries = other._entries[theirs : theirs + 1, 0, : stop // self._kind.ratio]
        self._put(slot, tail, start, entries)

    def _put(self, slot: int, tail: Sequence[mx.array], start: int, entries: mx.array | None) -> None:
        """Have the vectors and gates of tokens from `start` on, and the entries, in a slot."""
        self._allot()
        places = mx.arange(start, start + tail[0].shape[1]) % self._ring
        for ring, array in zip(self._rings, tail, strict=True):
            ring[slot, 0, places] = array[0]
        if entries is not None and entries.shape[1] and self._entries is not None:
            self._entries[slot, 0, : entries.shape[1]] = entries[0]

    def view(self, slot: int, stop: int) -> PoolingCache:
        cache = PoolingCache(self._kind.ratio, self._overlap)
        cache.tokens = stop
        if self._entries is not None:
            places = mx.arange(cache._first_kept, stop) % self._ring
            kv, gate = (ring[slot : slot + 1, 0, places] for ring in self._rings)
            cache.tail = kv, gate
            cache.pooled = self._entries[slot : slot + 1, 0, : cache.entries] if cache.entries else None
        return cache

    def grow(self, slots: int, capacity: int) -> None:
        if self._entries is not None:
            self._rings = [enlarged(ring, slots, self._ring) for ring in self._rings]
            self._entries = enlarged(self._entries, slots, self._kind.entries(capacity))

    def pack(self, kept: Sequence[int], capacity: int) -> None:
        if self._entries is not None:
            picked = mx.array(list(kept))
            self._rings = [ring[picked] for ring in self._rings]
            self._entries = self._entries[:, :, : self._kind.entries(capacity)][picked]

    def arrays(self) -> list[mx.array]:
        return [] if self._entries is None else [*self._rings, self._entries]

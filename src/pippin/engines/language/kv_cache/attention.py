"""The caches of rows that decode together: one arena for each layer, a slot for each row.

An arena is [slots, heads, capacity, dim]. A row lies in its slot from position 0, whatever its neighbours' lengths, so
joining writes one slot, leaving writes nothing, and nobody else is copied but when an arena grows. Where the models
of mlx-lm see one as their cache it answers as those do: `offset`, `update_and_fetch`, `make_mask`, items.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

from pippin.engines.language.kv_cache.state import StateArena
from pippin.engines.language.kv_cache.window import Window

Mask = mx.array | str | None

MOST_PIECES = 4  # of new tokens: more cost more than writing row by row (measured on a CPU)


@dataclass(frozen=True, kw_only=True)
class BatchShape:
    """How the arenas of a model are made."""

    slack: int = 0  # tokens that a row may be taken back by
    prompts_in_slots: bool = False  # prompts are computed where their rows will lie
    kv_bits: int | None = None  # of full attention, None to keep it as it comes
    kv_group_size: int = 64


class AttentionArena:
    """Keys and values of a layer of full attention."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.parts: list[mx.array] = []  # keys and values, [slots, heads, capacity, dim] each
        self._tick = 0

    @property
    def offset(self) -> int | mx.array:
        return self.window.after if self._tick == self.window.tick else self.window.before

    @property
    def _offset(self) -> int:
        """Where models of mlx-vlm look how far a batch is; they would wait for the device to find it out."""
        return self.window.longest

    def _reach(self) -> int:
        return self.window.longest + self.window.count

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        self._tick = self.window.tick
        new = self._encoded(keys, values)
        self.allot(new)
        self.parts = [self._written(part, added) for part, added in zip(self.parts, new, strict=True)]
        return self.keys_and_values()

    def keys_and_values(self) -> Any:
        window, reach = self.window, self._reach()
        return self._offered([part[window.low : window.high, :, :reach] for part in self.parts])

    def _encoded(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        """What is stored of new keys and values."""
        return [keys, values]

    def _offered(self, parts: list[mx.array]) -> Any:
        """What the model's attention is given."""
        return parts[0], parts[1]

    def _decoded(self, parts: list[mx.array]) -> tuple[mx.array, mx.array]:
        return parts[0], parts[1]

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        window = self.window
        if window_size is None or self._reach() <= window_size:
            window_size = None
            if window.level and not return_array:
                return None if N == 1 else "causal"
        queries = window.positions()[..., None]
        keys = mx.arange(self._reach())
        mask = keys <= queries
        if window_size is not None:
            mask = mask & (keys > queries - window_size)
        return mask[:, None]

    def _room(self, capacity: int) -> int:
        return capacity

    def allot(self, new: list[mx.array]) -> None:
        """Make the parts, if there are none yet, for such arrays [any, heads, any, dim]."""
        if not self.parts:
            slots, capacity = len(self.window.lengths), self._room(self.window.capacity)
            self.parts = [
                mx.zeros((slots, part.shape[1], capacity, part.shape[3]), dtype=part.dtype) for part in new
            ]

    def _at(self, position: Any) -> Any:
        """Where positions lie."""
        return position

    def _in_pieces(self) -> bool:
        """Whether the new tokens of rows at one position are written as a piece: there are few such pieces."""
        return len(self.window.runs) <= MOST_PIECES

    def _written(self, part: mx.array, new: mx.array) -> mx.array:
        window = self.window
        if self._in_pieces():
            for low, high, length in window.runs:
                start = self._at(length)
                part[low:high, :, start : start + window.count] = new[low - window.low : high - window.low]
        elif window.count == 1:
            # Twice as quick on a CPU as an assignment by index, and no copy of the part as long as it is a whole one.
            new = window.over_all_slots(new)
            places = mx.broadcast_to(self._at(window.places), new.shape)
            part = mx.put_along_axis(part, places, new, axis=2)
        else:
            part[window.slots[:, None], :, self._at(window.positions())] = new.transpose(0, 2, 1, 3)
        return part

    def grow(self, slots: int, capacity: int) -> None:
        self.parts = [_enlarged(part, slots, self._room(capacity)) for part in self.parts]

    def pack(self, slots: list[int], capacity: int) -> None:
        """Keep these slots alone, in this order, with so many places."""
        kept = mx.array(slots)
        self.parts = [part[:, :, : self._room(capacity)][kept] for part in self.parts]

    def store(self, slot: int, cache: Any) -> None:
        """Copy a row's private cache into its slot."""
        if cache.keys is not None:
            self.write(slot, cache.keys[..., : cache.offset, :], cache.values[..., : cache.offset, :], 0)

    def write(self, slot: int, keys: mx.array, values: mx.array, start: int) -> None:
        """Keys and values [1, heads, n, dim] of a row, from place `start` on."""
        self._put(slot, self._encoded(keys, values), start)

    def _put(self, slot: int, new: list[mx.array], start: int) -> None:
        self.allot(new)
        for part, added in zip(self.parts, new, strict=True):
            part[slot : slot + 1, :, start : start + added.shape[2]] = added

    def adopt(self, slot: int, other: "AttentionArena", theirs: int) -> None:
        """Copy a row from another arena of the layer, or from another slot. What is quantised is not quantised again:
        that would change it."""
        stop = other.window.lengths[theirs]
        parts = [part[theirs : theirs + 1, :, :stop] for part in other.parts]
        if type(self) is not type(other):
            parts = self._encoded(*other._decoded(parts))
        self._put(slot, parts, 0)

    def take(self, slot: int, stop: int) -> tuple[mx.array, mx.array]:
        """Keys and values of a row up to position `stop`, [1, heads, n, dim], as views."""
        return self._decoded([part[slot : slot + 1, :, :stop] for part in self.parts])

    def arrays(self) -> list[mx.array]:
        return self.parts


class QuantizedArena(AttentionArena):
    """As `AttentionArena`, in few bits: six parts, packed keys, their scales and biases, and so for values.

    mlx-lm's attention tells by `bits` that it is given such.
    """

    def __init__(self, window: Window, bits: int, group_size: int) -> None:
        super().__init__(window)
        self.bits = bits
        self.group_size = group_size

    def _encoded(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        return [
            part
            for array in (keys, values)
            for part in mx.quantize(array, group_size=self.group_size, bits=self.bits)
        ]

    def _offered(self, parts: list[mx.array]) -> Any:
        return tuple(parts[:3]), tuple(parts[3:])

    def _decoded(self, parts: list[mx.array]) -> tuple[mx.array, mx.array]:
        keys, values = (
            mx.dequantize(packed, scales, biases, self.group_size, self.bits)
            for packed, scales, biases in (parts[:3], parts[3:])
        )
        return keys, values


class SlidingArena(AttentionArena):
    """Keys and values of a layer that attends to the last `size` tokens: position p lies at p modulo the ring.

    `slack` more positions are kept, so that as many tokens can be added at once, and forgotten again.
    """

    def __init__(self, window: Window, size: int, slack: int = 0) -> None:
        super().__init__(window)
        self.size = size
        self.ring = size + slack

    def _room(self, capacity: int) -> int:
        return min(capacity, self.ring)

    def _reach(self) -> int:
        return min(super()._reach(), self.ring)

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        window = self.window
        size = self.size if window_size is None else min(window_size, self.size)
        total = window.longest + window.count
        if window.level and not return_array and (total <= size or (N == 1 and self.ring == size)):
            return None if N == 1 else "causal"
        positions = window.positions()
        last = positions[:, -1:]
        ages = (
            last - mx.arange(self._reach())
        ) % self.ring  # of each place, in tokens since the last written
        keys = (last - ages)[:, None]
        queries = positions[..., None]
        mask = (keys >= 0) & (keys <= queries) & (keys > queries - size)
        return mask[:, None]

    def _at(self, position: Any) -> Any:
        return position % self.ring

    def _in_pieces(self) -> bool:
        return self.window.count == 1 and super()._in_pieces()

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

    def take(self, slot: int, stop: int) -> tuple[mx.array, mx.array]:
        """What position `stop` of a row attends to, oldest first; `stop` may lie back from its end by the slack."""
        places = mx.arange(max(stop - self.size, 0), stop) % self.ring
        keys, values = (part[slot : slot + 1][:, :, places] for part in self.parts)
        return keys, values


class ArenaList:
    """Several arenas of one layer."""

    def __init__(self, arenas: list["Arena"]) -> None:
        self.arenas = arenas

    def __getitem__(self, index: int) -> "Arena":
        return self.arenas[index]


Arena = AttentionArena | SlidingArena | StateArena | ArenaList


def arena_for(cache: Any, window: Window, shape: "BatchShape") -> Arena:
    """The arena for rows whose private cache is of this kind; `row_caches.can_batch` said that there is one."""
    if type(cache) is KVCache:
        if shape.kv_bits is not None:
            return QuantizedArena(window, shape.kv_bits, shape.kv_group_size)
        return AttentionArena(window)
    if type(cache) is RotatingKVCache:
        return SlidingArena(window, cache.max_size, shape.slack)
    if type(cache) is ArraysCache:
        return StateArena(window, len(cache.cache))
    if type(cache) is CacheList:
        return ArenaList([arena_for(part, window, shape) for part in cache.caches])
    raise TypeError(f"no arena for {type(cache).__name__}")


def _enlarged(part: mx.array, slots: int, capacity: int) -> mx.array:
    for axis, more in ((2, capacity - part.shape[2]), (0, slots - part.shape[0])):
        if more > 0:
            shape = list(part.shape)
            shape[axis] = more
            part = mx.concatenate([part, mx.broadcast_to(mx.zeros((), part.dtype), shape)], axis=axis)
    return part

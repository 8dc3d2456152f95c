"""Rows that go through the model together, in slots of arenas."""

from collections.abc import Callable
from typing import Self

import mlx.core as mx
import mlx.nn as nn

from pippin.engines.language.kv_cache.attention import (
    Arena,
    ArenaList,
    AttentionArena,
    BatchShape,
    SlidingArena,
    arena_for,
)
from pippin.engines.language.kv_cache.capacity import rounded, row_places
from pippin.engines.language.kv_cache.kinds import RowCache, leaves, new_row_cache
from pippin.engines.language.kv_cache.slots import Reservation, SlotCache, in_slot
from pippin.engines.language.kv_cache.state import StateArena
from pippin.engines.language.kv_cache.window import Window

HOLLOW_STEPS = 8
SPARE_SLOTS = 8  # at most, and no more than there are


class ArenaGroup:
    """Rows in arenas."""

    def __init__(self, model: nn.Module, shape: BatchShape, row_bytes: Callable[[int], int]) -> None:
        """`row_bytes`: of one row with so many places."""
        self._model = model
        self._window = Window()
        self._shape = shape
        self._row_bytes = row_bytes
        self._live: set[int] = set()
        self._reserved: dict[int, Reservation] = {}  # by slot
        self._hollow = 0  # steps since a quarter of the slots are holes
        self._arenas: list[Arena] = []
        self._reset()

    def _reset(self) -> None:
        """Let go of all memory."""
        window = self._window
        window.low = window.high = window.capacity = 0
        window.lengths, window.shifts = [], []
        self._arenas = [arena_for(cache, window, self._shape) for cache in new_row_cache(self._model)]

    @property
    def low(self) -> int:
        return self._window.low

    @property
    def high(self) -> int:
        return self._window.high

    @property
    def empty(self) -> bool:
        return not self._live and not self._reserved

    def length(self, slot: int) -> int:
        return self._window.lengths[slot]

    def reserve(self, length: int, room: int, coming: int = 0) -> Reservation | None:
        if not self._shape.prompts_in_slots:
            return None
        slot = self._open(length, room, coming)
        cache = in_slot(new_row_cache(self._model, length), self._arenas, slot)
        self._reserved[slot] = Reservation(slot=slot, length=length, cache=cache)
        return self._reserved[slot]

    def join(
        self,
        cache: RowCache,
        length: int,
        room: int,
        shift: int = 0,
        coming: int = 0,
        reservation: Reservation | None = None,
    ) -> int:
        if reservation is None:
            slot = self._open(length, room, coming)
        else:
            slot = reservation.slot
            del self._reserved[slot]
        self._go_live(slot, length, shift)
        for arena, layer in zip(flat(self._arenas), leaves(cache), strict=True):
            if not isinstance(layer, SlotCache):
                arena.store(slot, layer)
        return slot

    def release(self, reservation: Reservation) -> None:
        del self._reserved[reservation.slot]
        self._close(reservation.slot)

    def adopt(self, other: Self, slot: int, room: int) -> int:
        length, shift = other.length(slot), other._window.shifts[slot]
        mine = self._open(length, room)
        self._go_live(mine, length, shift)
        for arena, theirs in zip(flat(self._arenas), flat(other._arenas), strict=True):
            arena.adopt(mine, theirs, slot)  # type: ignore[arg-type] # the same layer has the same kind
        other.leave(slot)
        return mine

    def _open(self, length: int, room: int, coming: int = 0) -> int:
        """A slot with places for such a row."""
        slot = self._free_slot()
        self._grow(*self._with(slot, length, room, coming))
        return slot

    def _go_live(self, slot: int, length: int, shift: int) -> None:
        """Steps compute this slot from now on."""
        window = self._window
        if self._live:
            self._resize(min(window.low, slot), max(window.high, slot + 1))
        else:
            self._resize(slot, slot + 1)
        self._live.add(slot)
        window.lengths[slot], window.shifts[slot] = length, shift

    def _with(self, slot: int, length: int, room: int, coming: int = 0) -> tuple[int, int]:
        """Slots and places once such a row lies in this slot. Growing copies all rows, so more slots are made than
        needed: as many as are coming, or some to spare."""
        held = len(self._window.lengths)
        slots = max(held, slot + 1)
        if room and slots > held:
            taken = len(self._live) + len(self._reserved)
            slots = max(slots, taken + 1 + coming, min(held * 2, held + SPARE_SLOTS))
        return slots, max(self._window.capacity, row_places(length, room, self._shape.slack))

    def _free_slot(self) -> int:
        holes = self._holes(0, len(self._window.lengths))
        inside = [slot for slot in holes if self.low <= slot < self.high]
        if inside or not holes:
            return inside[0] if inside else len(self._window.lengths)
        return min(holes, key=lambda slot: abs(slot - self.high) if slot >= self.high else self.low - slot)

    def _holes(self, low: int, high: int) -> list[int]:
        return [slot for slot in range(low, high) if slot not in self._live and slot not in self._reserved]

    def leave(self, slot: int) -> None:
        self._live.discard(slot)
        self._close(slot)

    def _close(self, slot: int) -> None:
        """Nothing lies in this slot any more."""
        window = self._window
        window.lengths[slot] = window.shifts[slot] = 0
        if self.empty:
            self._reset()
        elif not self._live:
            self._resize(0, 0)
        elif slot in (window.low, window.high - 1):
            self._resize(min(self._live), max(self._live) + 1)

    def rewind(self, slot: int, tokens: int) -> None:
        self._window.lengths[slot] -= tokens

    def forward(self, tokens: mx.array) -> mx.array:
        window = self._window
        count = tokens.shape[1]
        if (places := self._places_after(count)) > window.capacity:
            self._grow(len(window.lengths), places)
        window.begin(count)
        logits: mx.array = self._model(tokens, cache=self._arenas)
        for slot in self._live:
            window.lengths[slot] += count
        return logits

    def compact(self) -> list[tuple[int, int]]:
        """One row for each call, once a quarter of the computed slots are holes that nobody came to fill.

        This alone ever copies a row that did not just join: a hole costs a row's work in every step.
        """
        window = self._window
        holes = self._holes(window.low, window.high)
        self._hollow = self._hollow + 1 if holes and len(holes) * 4 >= window.rows else 0
        if self._hollow <= HOLLOW_STEPS:
            return []
        source, target = window.high - 1, holes[0]
        for arena in flat(self._arenas):
            arena.adopt(target, arena, source)  # type: ignore[arg-type] # its own kind
        for held in (window.lengths, window.shifts):
            held[target], held[source] = held[source], 0
        self._live.discard(source)
        self._live.add(target)
        self._resize(min(self._live), max(self._live) + 1)
        return [(source, target)]

    def bytes_with(self, length: int, room: int, coming: int = 0) -> int:
        slots, places = self._with(self._free_slot(), length, room, coming)
        return slots * self._row_bytes(places)

    def bytes_after(self, count: int) -> int:
        return len(self._window.lengths) * self._row_bytes(self._places_after(count))

    def pack(self) -> dict[int, int]:
        window, kept = self._window, sorted({*self._live, *self._reserved})
        longest = max(
            self._reserved[slot].length if slot in self._reserved else window.lengths[slot] for slot in kept
        )
        capacity = min(window.capacity, rounded(longest + self._shape.slack + 1))
        if len(kept) == len(window.lengths) and capacity == window.capacity:
            return {}
        window.capacity = capacity
        computed = [slot for slot in kept if window.low <= slot < window.high]
        for arena in flat(self._arenas):
            arena.pack(computed if isinstance(arena, StateArena) else kept, capacity)
            mx.eval(arena.arrays())  # so that no more than one layer lies there twice
        window.lengths = [window.lengths[slot] for slot in kept]
        window.shifts = [window.shifts[slot] for slot in kept]
        moved = {old: new for new, old in enumerate(kept)}
        self._live = {moved[slot] for slot in self._live}
        for reservation in self._reserved.values():
            reservation.move(moved[reservation.slot])
        self._reserved = {each.slot: each for each in self._reserved.values()}
        window.low, window.high = min(self._live, default=0), max(self._live, default=-1) + 1
        return moved

    def _places_after(self, count: int) -> int:
        window = self._window
        reach = max(window.lengths, default=0) + count
        return rounded(reach) if reach > window.capacity else window.capacity

    def looks_back(self, slot: int) -> bool:
        return True

    def view(self, slot: int, stop: int) -> RowCache:
        cache = new_row_cache(self._model)
        for arena, layer in zip(flat(self._arenas), leaves(cache), strict=True):
            match arena:
                case SlidingArena():
                    layer.keys, layer.values = arena.take(slot, stop)
                    layer.offset, layer._idx = stop, layer.keys.shape[2]
                case AttentionArena():
                    layer.keys, layer.values = arena.take(slot, stop)
                    layer.offset = stop
                case StateArena():
                    layer.cache = arena.take(slot)
        return cache

    def _grow(self, slots: int, capacity: int) -> None:
        window = self._window
        held = len(window.lengths)
        if slots > held:
            window.lengths.extend([0] * (slots - held))
            window.shifts.extend([0] * (slots - held))
        if slots > held or capacity > window.capacity:
            window.capacity = max(capacity, window.capacity)
            for arena in flat(self._arenas):
                arena.grow(len(window.lengths), window.capacity)

    def _resize(self, low: int, high: int) -> None:
        window = self._window
        if (low, high) != (window.low, window.high):
            for arena in flat(self._arenas):
                if isinstance(arena, StateArena):
                    arena.resize((window.low, window.high), (low, high))
            window.low, window.high = low, high

    def arrays(self) -> list[mx.array]:
        return [array for arena in flat(self._arenas) for array in arena.arrays()]

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays())


def flat(arenas: list[Arena]) -> list[AttentionArena | SlidingArena | StateArena]:
    found: list[AttentionArena | SlidingArena | StateArena] = []
    for arena in arenas:
        found.extend(flat(arena.arenas) if isinstance(arena, ArenaList) else [arena])
    return found

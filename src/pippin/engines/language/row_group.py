"""Rows that go through the model together: slots in arenas, or caches of their own where a model needs that."""

from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn

from pippin.engines.language.arenas import (
    Arena,
    ArenaList,
    AttentionArena,
    BatchShape,
    SlidingArena,
    StateArena,
    arena_for,
)
from pippin.engines.language.row_caches import RowCache, leaves, new_row_cache
from pippin.engines.language.scheduler import CAPACITY_STEP
from pippin.engines.language.window import Window

HOLLOW_STEPS = 8


class RowGroup(Protocol):
    """`low` to `high` are the slots that a step computes; `forward` takes and gives one entry for each of them."""

    @property
    def low(self) -> int: ...

    @property
    def high(self) -> int: ...

    @property
    def rows(self) -> int:
        """Live rows."""
        ...

    def join(self, cache: RowCache, length: int, room: int, shift: int = 0, coming: int = 0) -> int:
        """Copy a row of `length` tokens in, which will grow by up to `room`; gives its slot. `shift` is what rotary
        positions differ by from the tokens' places. As many rows as are `coming` will join soon."""
        ...

    def leave(self, slot: int) -> None: ...

    def length(self, slot: int) -> int: ...

    def rewind(self, slot: int, tokens: int) -> None:
        """Forget the last tokens of a row."""
        ...

    def forward(self, tokens: mx.array) -> mx.array:
        """Run tokens [slots, n] through the model and its caches: logits [slots, n, vocabulary]."""
        ...

    def compact(self) -> list[tuple[int, int]]:
        """Move rows into holes where it pays; (old slot, new slot) of each."""
        ...

    def view(self, slot: int, stop: int) -> RowCache:
        """A row as a cache of its own, as of position `stop`; good until the next step. Windows can look back by the
        slack, recurrent state is the row's newest."""
        ...

    @property
    def bytes(self) -> int: ...


class ArenaGroup:
    """Rows in arenas."""

    def __init__(self, model: nn.Module, shape: BatchShape) -> None:
        self._model = model
        self._window = Window()
        self._shape = shape
        self._live: set[int] = set()
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
    def rows(self) -> int:
        return len(self._live)

    def length(self, slot: int) -> int:
        return self._window.lengths[slot]

    def join(self, cache: RowCache, length: int, room: int, shift: int = 0, coming: int = 0) -> int:
        window = self._window
        slot = self._free_slot()
        capacity = (
            -(-(length + min(room, CAPACITY_STEP) + self._shape.slack + 1) // CAPACITY_STEP) * CAPACITY_STEP
        )
        self._grow(slot + 1, capacity, len(self._live) + 1 + coming)
        if self._live:
            self._resize(min(window.low, slot), max(window.high, slot + 1))
        else:
            self._resize(slot, slot + 1)
        self._live.add(slot)
        for arena, row in zip(flat(self._arenas), leaves(cache), strict=True):
            arena.store(slot, row)
        window.lengths[slot], window.shifts[slot] = length, shift
        return slot

    def _free_slot(self) -> int:
        holes = [slot for slot in range(len(self._window.lengths)) if slot not in self._live]
        inside = [slot for slot in holes if self.low <= slot < self.high]
        if inside or not holes:
            return inside[0] if inside else len(self._window.lengths)
        return min(holes, key=lambda slot: abs(slot - self.high) if slot >= self.high else self.low - slot)

    def leave(self, slot: int) -> None:
        self._live.discard(slot)
        window = self._window
        window.lengths[slot] = window.shifts[slot] = 0
        if not self._live:
            self._reset()
        elif slot in (window.low, window.high - 1):
            self._resize(min(self._live), max(self._live) + 1)

    def rewind(self, slot: int, tokens: int) -> None:
        self._window.lengths[slot] -= tokens

    def forward(self, tokens: mx.array) -> mx.array:
        window = self._window
        count = tokens.shape[1]
        longest = max(window.lengths[window.low : window.high])
        if longest + count > window.capacity:
            self._grow(len(window.lengths), window.capacity + CAPACITY_STEP)
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
        holes = [slot for slot in range(window.low, window.high) if slot not in self._live]
        self._hollow = self._hollow + 1 if len(holes) * 4 >= window.rows else 0
        if self._hollow <= HOLLOW_STEPS:
            return []
        source, target = window.high - 1, holes[0]
        for arena in flat(self._arenas):
            arena.move(source, target)
        for held in (window.lengths, window.shifts):
            held[target], held[source] = held[source], 0
        self._live.discard(source)
        self._live.add(target)
        self._resize(min(self._live), max(self._live) + 1)
        return [(source, target)]

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

    def _grow(self, slots: int, capacity: int, foreseen: int = 0) -> None:
        """Growing copies all rows, so more slots are made than needed: as many as are foreseen, or some to spare."""
        window = self._window
        held = len(window.lengths)
        if slots > held:
            slots = max(slots, foreseen, min(held * 2, held + 8))
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


class SoloGroup:
    """Rows with the model's own caches, one after the other: for models whose caches have no arena."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._caches: list[RowCache | None] = []
        self._lengths: list[int] = []
        self._shifts: list[int] = []

    @property
    def low(self) -> int:
        return 0

    @property
    def high(self) -> int:
        return len(self._caches)

    @property
    def rows(self) -> int:
        return sum(cache is not None for cache in self._caches)

    def length(self, slot: int) -> int:
        return self._lengths[slot]

    def join(self, cache: RowCache, length: int, room: int, shift: int = 0, coming: int = 0) -> int:
        self._caches.append(copy_row(cache))
        self._lengths.append(length)
        self._shifts.append(shift)
        return len(self._caches) - 1

    def leave(self, slot: int) -> None:
        self._caches[slot] = None
        while self._caches and self._caches[-1] is None:
            self._caches.pop()
            self._lengths.pop()
            self._shifts.pop()

    def rewind(self, slot: int, tokens: int) -> None:
        for cache in self._caches[slot] or ():
            cache.trim(tokens)
        self._lengths[slot] -= tokens

    def forward(self, tokens: mx.array) -> mx.array:
        results: list[mx.array | None] = []
        for slot, cache in enumerate(self._caches):
            shifted = {"shift": self._shifts[slot]} if self._shifts[slot] else {}
            results.append(
                None if cache is None else self._model(tokens[slot : slot + 1], cache=cache, **shifted)
            )
            self._lengths[slot] += tokens.shape[1]
        filled = next(result for result in results if result is not None)
        return mx.concatenate([mx.zeros_like(filled) if result is None else result for result in results])

    def compact(self) -> list[tuple[int, int]]:
        return []

    def view(self, slot: int, stop: int) -> RowCache:
        cache = copy_row(self._caches[slot] or [])
        if stop < self._lengths[slot]:
            for part in cache:
                part.trim(self._lengths[slot] - stop)
        return cache

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for cache in self._caches for part in cache or () if not part.empty())


def copy_row(cache: RowCache) -> RowCache:
    """A row's cache to go on with by itself. Arrays are shared until one side writes: MLX copies then."""
    return [_copied(part) for part in cache]


def _copied(part: Any) -> Any:
    state = part.state
    return type(part).from_state(_listed(state))


def _listed(state: Any) -> Any:
    if isinstance(state, mx.array):
        return state[:] if state.ndim else state
    if isinstance(state, list):
        return [_listed(item) for item in state]
    if isinstance(state, tuple):
        return tuple(_listed(item) for item in state)
    return state

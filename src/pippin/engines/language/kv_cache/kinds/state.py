"""Recurrent and convolutional layers: a state of fixed size in place of keys and values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from pippin.engines.language.kv_cache.kinds.base import BatchedCache, CacheKind, SlotTable, Snapshot
from pippin.engines.language.kv_cache.replay import Call


class StateUpdates:
    """The methods beside items that models of mlx-vlm call on a state; those of mlx-lm do the same themselves."""

    def update_window(self, index: int, source: mx.array, width: int, *, lengths: None = None) -> mx.array:
        """Keep the last `width` inputs [rows, tokens, ...] of a convolution as the state `index`."""
        state = mx.contiguous(source[:, source.shape[1] - width :])
        self[index] = state  # type: ignore[index] # of the class that this is mixed into
        return state

    def update_recurrent(self, index: int, length: int, update: Any) -> tuple[mx.array, mx.array]:
        output, state = update(self[index], None)[:2]  # type: ignore[index]
        self[index] = state  # type: ignore[index]
        return output, state


class PromptState(StateUpdates, ArraysCache):  # type: ignore[misc] # mlx-lm has no types
    """A prompt's own state for models of mlx-lm and of mlx-vlm."""


@dataclass(frozen=True, kw_only=True)
class StateKind(CacheKind):
    serves = (ArraysCache, PromptState)
    replays = True

    count: int  # arrays
    bytes: int  # of all of them, of one sequence

    @classmethod
    def of(cls, cache: Any) -> Self:
        held = [array for array in cache.cache if array is not None]
        return cls(count=len(cache.cache), bytes=sum(array.nbytes for array in held))

    @classmethod
    def like(cls, cache: Any, beside: Sequence[Any]) -> PromptState:
        return PromptState(len(cache.cache))

    def slot_bytes(self, capacity: int, slack: int) -> int:
        return self.bytes

    def batched(self, slots: SlotTable) -> "BatchedState":
        return BatchedState(slots, self.count)

    def snapshot(self, cache: Any) -> Snapshot:
        return tuple(None if array is None else mx.contiguous(array) for array in cache.cache)

    def restore(self, cache: Any, snapshot: Snapshot, tokens: int) -> None:
        cache.cache = [None if array is None else array[:] for array in snapshot]


KIND = StateKind


States = list[mx.array | None]


@dataclass(frozen=True)
class _Window:
    """A step of several tokens that can still be taken back: the states before it, and the calls that changed them."""

    step: int
    count: int  # tokens
    start: States
    calls: list[Call] = field(default_factory=list)


class BatchedState(StateUpdates, BatchedCache, ArraysCache):  # type: ignore[misc] # mlx-lm has no types
    """Arrays [computed slots, ...], replaced whole by each step.

    The model writes the state of all sequences anew in every step, so joining at an end costs no more than a step does.
    Of a step of several tokens the states before it are kept until `rewind`, which computes from there how each
    sequence stands after those of its tokens that stay. Mamba's layers write to caches of mlx-lm's class alone.
    """

    left_padding = None
    lengths = None

    def __init__(self, slots: SlotTable, count: int) -> None:
        super().__init__(slots)
        self.cache: States = [None] * count
        self._window: _Window | None = None

    def note(self, call: Call) -> None:
        slots = self.slots
        if slots.count == 1:
            return
        if self._window is None or self._window.step != slots.step:
            self._window = _Window(slots.step, slots.count, list(self.cache))
        self._window.calls.append(call)

    def rewind(self, tokens: Mapping[int, int]) -> None:
        window, self._window = self._window, None
        if window is None or not any(tokens.values()):
            return
        kept = [window.count - tokens.get(slot, 0) for slot in range(self.slots.low, self.slots.high)]
        found, self.cache = self.cache, list(window.start)
        done = 0
        # From the shortest to the longest: all tokens that anybody keeps are computed once, whatever each keeps.
        for end in sorted({*kept} - {window.count}):
            for call in window.calls if end else ():
                call.again(window.count, done, end)
            rows = mx.array([each == end for each in kept])
            found = [_replaced(rows, mine, new) for mine, new in zip(found, self.cache, strict=True)]
            done = end
        self.cache = found

    def clear(self, slot: int) -> None:
        self._put(slot, [None] * len(self.cache))

    def checkpoint(self) -> States:
        # New array objects: what `_put` writes into an array in place does not change these.
        return [None if state is None else state[:] for state in self.cache]

    def restore(self, checkpoint: States) -> None:
        self._window = None
        self.cache = [None if state is None else state[:] for state in checkpoint]

    def store(self, slot: int, cache: Any) -> None:
        self._put(slot, cache.cache)

    def adopt(self, slot: int, other: "BatchedState", theirs: int) -> None:
        self._put(slot, other._taken(theirs))

    def _put(self, slot: int, states: Sequence[mx.array | None]) -> None:
        place = slot - self.slots.low
        for index, state in enumerate(states):
            held = self.cache[index]
            if state is None and held is not None:
                state = mx.zeros_like(held[:1])
            if state is None:
                continue
            if held is None:
                held = mx.zeros((self.slots.high - self.slots.low, *state.shape[1:]), dtype=state.dtype)
            held[place : place + 1] = state
            self.cache[index] = held

    def _taken(self, slot: int) -> States:
        place = slot - self.slots.low
        return [None if state is None else state[place : place + 1] for state in self.cache]

    def view(self, slot: int, stop: int) -> ArraysCache:
        cache = PromptState(len(self.cache))
        cache.cache = self._taken(slot)
        return cache

    def pack(self, kept: Sequence[int], capacity: int) -> None:
        low, high = self.slots.low, self.slots.high
        picked = mx.array([slot - low for slot in kept if low <= slot < high])
        self.cache = [None if state is None else state[picked] for state in self.cache]

    def cover(self, low: int, high: int) -> None:
        if low == high:
            self.cache = [None] * len(self.cache)
            return
        before = self.slots.low, self.slots.high
        self.cache = [
            None if state is None else _covering(state, before, (low, high)) for state in self.cache
        ]

    def arrays(self) -> list[mx.array]:
        return [state for state in self.cache if state is not None]


def _replaced(rows: mx.array, old: mx.array | None, new: mx.array | None) -> mx.array | None:
    """A state with that of these rows, which are marked, from another; zeros, where there is none yet."""
    if old is None:
        return None
    new = mx.zeros_like(old) if new is None else new
    return mx.where(rows.reshape(-1, *[1] * (old.ndim - 1)), new, old)


def _covering(state: mx.array, before: tuple[int, int], after: tuple[int, int]) -> mx.array:
    """The state of slots `after`, of which it has those of `before`; zeros for the others."""
    parts = [state[max(after[0] - before[0], 0) : min(after[1], before[1]) - before[0]]]
    for place, size in ((0, before[0] - after[0]), (2, after[1] - before[1])):
        if size > 0:
            parts.insert(place, mx.zeros((size, *state.shape[1:]), dtype=state.dtype))
    return mx.concatenate(parts) if len(parts) > 1 else parts[0]

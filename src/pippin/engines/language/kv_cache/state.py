"""The states of rows that decode together, for layers that remember by a state instead of keys and values."""

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from pippin.engines.language.kv_cache.window import Window


class StateArena:
    """The state of a recurrent or convolutional layer: arrays [rows, ...], replaced whole by each step.

    The model writes all rows' state anew in every step, so joining at the end costs no more than a step does.
    """

    left_padding = None
    lengths = None

    def __init__(self, window: Window, count: int) -> None:
        self.window = window
        self.cache: list[mx.array | None] = [None] * count

    def __getitem__(self, index: int) -> mx.array | None:
        return self.cache[index]

    def __setitem__(self, index: int, value: mx.array) -> None:
        self.cache[index] = value

    def make_mask(self, N: int) -> None:
        return None

    def advance(self, N: int) -> None:
        pass

    def resize(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        """The window went from slots `before` to `after`."""
        if after[0] == after[1]:
            self.cache = [None] * len(self.cache)
            return
        for index, state in enumerate(self.cache):
            if state is not None:
                self.cache[index] = _resized(state, before, after)

    def store(self, slot: int, cache: ArraysCache) -> None:
        self._put(slot, cache.cache)

    def adopt(self, slot: int, other: "StateArena", theirs: int) -> None:
        self._put(slot, other.take(theirs))

    def _put(self, slot: int, states: list[mx.array | None]) -> None:
        place = slot - self.window.low
        for index, state in enumerate(states):
            held = self.cache[index]
            if state is None and held is not None:
                state = mx.zeros_like(held[:1])
            if state is None:
                continue
            if held is None:
                held = mx.zeros((self.window.rows, *state.shape[1:]), dtype=state.dtype)
            held[place : place + 1] = state
            self.cache[index] = held

    def grow(self, slots: int, capacity: int) -> None:
        pass

    def pack(self, slots: list[int], capacity: int) -> None:
        kept = mx.array([slot - self.window.low for slot in slots])
        self.cache = [None if state is None else state[kept] for state in self.cache]

    def take(self, slot: int) -> list[mx.array | None]:
        """A row's state, as views."""
        place = slot - self.window.low
        return [None if state is None else state[place : place + 1] for state in self.cache]

    def arrays(self) -> list[mx.array]:
        return [state for state in self.cache if state is not None]


def _resized(state: mx.array, before: tuple[int, int], after: tuple[int, int]) -> mx.array:
    """The state of slots `after`, of which it has those of `before`; zeros for the others."""
    parts = [state[max(after[0] - before[0], 0) : min(after[1], before[1]) - before[0]]]
    for place, size in ((0, before[0] - after[0]), (2, after[1] - before[1])):
        if size > 0:
            parts.insert(place, mx.zeros((size, *state.shape[1:]), dtype=state.dtype))
    return mx.concatenate(parts) if len(parts) > 1 else parts[0]

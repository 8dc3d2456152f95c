"""Rows with the model's own caches, one after the other: for models whose caches have no arena."""

from collections.abc import Callable
from typing import Any, Self

import mlx.core as mx
import mlx.nn as nn

from pippin.engines.language.kv_cache import capacity as sizes
from pippin.engines.language.kv_cache.kinds import RowCache
from pippin.engines.language.kv_cache.slots import Reservation


class SoloGroup:
    """A `RowGroup` of caches as the model makes them."""

    def __init__(self, model: nn.Module, row_bytes: Callable[[int], int]) -> None:
        """`row_bytes`: of one row with so many places."""
        self._model = model
        self._row_bytes = row_bytes
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
    def empty(self) -> bool:
        return all(cache is None for cache in self._caches)

    def length(self, slot: int) -> int:
        return self._lengths[slot]

    def join(
        self,
        cache: RowCache,
        length: int,
        room: int,
        shift: int = 0,
        coming: int = 0,
        reservation: Reservation | None = None,
    ) -> int:
        return self._append(copy_row(cache), length, shift)

    def reserve(self, length: int, room: int, coming: int = 0) -> None:
        return None

    def release(self, reservation: Reservation) -> None:
        pass

    def adopt(self, other: Self, slot: int, room: int) -> int:
        mine = self._append(other._caches[slot], other._lengths[slot], other._shifts[slot])
        other.leave(slot)
        return mine

    def _append(self, cache: RowCache | None, length: int, shift: int) -> int:
        self._caches.append(cache)
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

    def bytes_with(self, length: int, room: int, coming: int = 0) -> int:
        return self.bytes_after(0) + self._row_bytes(length + sizes.CAPACITY_STEP)

    def bytes_after(self, count: int) -> int:
        # A cache allots whole steps, from wherever it stands.
        return sum(
            self._row_bytes(length + count + sizes.CAPACITY_STEP)
            for length, cache in zip(self._lengths, self._caches, strict=True)
            if cache is not None
        )

    def pack(self) -> dict[int, int]:
        return {}

    def looks_back(self, slot: int) -> bool:
        return all(part.is_trimmable() for part in self._caches[slot] or ())

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

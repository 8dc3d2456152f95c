"""Keeps what was used last, as far as there is room."""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Keeps at most `most` values, whose `size` is `most_size` at most in all. Several threads may use it at once."""

    def __init__(
        self, most: float = math.inf, most_size: float = math.inf, size: Callable[[Value], int] = lambda _: 0
    ) -> None:
        self._most, self._most_size, self._size_of = most, most_size, size
        self._size = 0
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Key) -> Value | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Key, value: Value) -> None:
        with self._lock:
            if key in self._kept:
                self._size -= self._size_of(self._kept.pop(key))
            self._kept[key] = value
            self._size += self._size_of(value)
            while self._kept and (len(self._kept) > self._most or self._size > self._most_size):
                self._size -= self._size_of(self._kept.popitem(last=False)[1])

    def values(self) -> list[Value]:
        with self._lock:
            return list(self._kept.values())

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._size = 0

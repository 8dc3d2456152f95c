"""Begins requests a few in each turn of the event loop, so that a crowd that comes at once holds up nobody else."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

IN_A_TURN: Final = 4
"""Each takes up to a millisecond from its headers to its first wait."""


class Turns:
    """First come, first begun."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._next: asyncio.Handle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, begin: Callable[[], None]) -> None:
        """`begin` is called when its turn has come; not in this turn of the loop."""
        self._waiting.append(begin)
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        for _ in range(min(IN_A_TURN, len(self._waiting))):
            self._waiting.popleft()()
        self._next = asyncio.get_running_loop().call_soon(self._turn) if self._waiting else None

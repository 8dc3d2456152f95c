"""Begins requests a few in each turn of the event loop, so that a crowd that comes at once holds up nobody else."""

import asyncio
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

IN_A_TURN: Final = 4
"""Each takes up to a millisecond from its headers to its first wait."""
ACCEPT_SECONDS: Final = 0.02
"""For which waiting connections go first; then there is a turn in any case."""


def accept_queue(listener: socket.socket) -> Callable[[], bool]:
    """A function that tells whether connections wait to be accepted."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return lambda: bool(poll.poll(0))


class Turns:
    """First come, first begun, a few in each turn of the event loop.

    The loop accepts one connection in each of its turns. So turns are kept short while more connections wait: else the
    last one, perhaps a request for `/health`, would wait until all others are begun.
    """

    def __init__(self, connections_wait: Callable[[], bool] = lambda: False) -> None:
        self._connections_wait = connections_wait
        self._waiting: deque[Callable[[], None]] = deque()
        self._next: asyncio.Handle | None = None
        self._began = 0.0  # the last turn; by the loop's clock

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, begin: Callable[[], None]) -> None:
        """Call `begin` when its turn has come, which is never in this turn of the loop."""
        self._waiting.append(begin)
        if self._next is None:
            loop = asyncio.get_running_loop()
            self._began = loop.time()
            self._next = loop.call_soon(self._turn)

    def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._began > ACCEPT_SECONDS or not self._connections_wait():
            for _ in range(min(IN_A_TURN, len(self._waiting))):
                self._waiting.popleft()()
            self._began = loop.time()
        self._next = loop.call_soon(self._turn) if self._waiting else None

"""Bounds on connections: how many of one address, how many bytes of answers may wait for clients that do not read them,
and for how long one may stall.

An answer is written to its connection at once, and unread bytes stay buffered. Without a bound, a client that asks for
large answers and reads none could hold 20 MB with each small request, for as long as it likes.
"""

import asyncio
import logging
from collections import Counter
from typing import Final, Protocol

log = logging.getLogger(__name__)

UNREAD_BYTES: Final = 512 << 20
"""The most bytes of answers that may wait for their clients, over all connections. One answer alone may be larger."""
STILL_SECONDS: Final = 300.0
"""How long a client may read nothing of an answer that waits for it.

Reading shows late: a kernel accepts more only when a third of its own buffer is free, which takes a minute or two for
audio that is played as it arrives."""
OF_ADDRESS: Final = 4096
"""The most connections of one address, which may be a proxy's: all together there can be 65,536."""
LOOK_SECONDS: Final = 1.0
"""Between two checks of what was read."""


class Unread(Protocol):
    """A connection's transport: the methods used here."""

    def get_write_buffer_size(self) -> int: ...

    def abort(self) -> None: ...


class _Reader:
    """How one client reads, since its answer began to wait. Times are by the event loop's clock."""

    def __init__(self, transport: Unread, now: float) -> None:
        self.transport = transport
        self.waiting = transport.get_write_buffer_size()  # bytes
        self._read = 0
        self._began = self.moved = now

    def look(self, now: float) -> None:
        waiting = self.transport.get_write_buffer_size()
        if waiting < self.waiting:
            self._read += self.waiting - waiting
            self.moved = now
        self.waiting = waiting

    def rate(self, now: float) -> float:
        """Bytes read per second since the answer began to wait."""
        return self._read / max(now - self._began, LOOK_SECONDS)


class UnreadAnswers:
    """The connections of a server, counted by address, and those whose clients read more slowly than their answers are
    written."""

    def __init__(
        self, most: int = UNREAD_BYTES, still: float = STILL_SECONDS, of_address: int = OF_ADDRESS
    ) -> None:
        self._of_address = of_address
        self._open: Counter[str] = Counter()  # connections of each address
        self._most = most
        self._still = still
        self._readers: dict[Unread, _Reader] = {}
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, address: str) -> bool:
        """Count a connection until `leave`; False if the address has too many."""
        self._open[address] += 1
        return self._open[address] <= self._of_address

    def leave(self, address: str) -> None:
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    @property
    def readers(self) -> int:
        """Connections whose answers wait to be read."""
        return len(self._readers)

    @property
    def waiting(self) -> int:
        """Bytes of all answers that wait to be read, when they were last looked at."""
        return sum(reader.waiting for reader in self._readers.values())

    def add(self, transport: Unread) -> None:
        """Watch a connection whose answer waits to be read."""
        loop = asyncio.get_running_loop()
        self._readers[transport] = _Reader(transport, loop.time())
        if self._timer is None:
            self._timer = loop.call_later(LOOK_SECONDS, self._look)
        self._hold(loop.time())

    def remove(self, transport: Unread) -> None:
        """Stop watching a connection whose answer was read, or which is closed."""
        self._readers.pop(transport, None)
        if not self._readers and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._hold(now)
        for reader in list(self._readers.values()):
            if now - reader.moved > self._still:
                self._cut(reader, "read nothing of its answer")
        self._timer = loop.call_later(LOOK_SECONDS, self._look) if self._readers else None

    def _hold(self, now: float) -> None:
        """Update all readers, and cut off the slowest, the longest stalled first, until the others have room."""
        for reader in self._readers.values():
            reader.look(now)
        waiting = self.waiting
        while waiting > self._most and len(self._readers) > 1:
            slowest = min(self._readers.values(), key=lambda reader: (reader.rate(now), reader.moved))
            waiting -= slowest.waiting
            self._cut(slowest, "read its answer most slowly while too many waited")

    def _cut(self, reader: _Reader, why: str) -> None:
        log.info("Cut off a client that %s: %d bytes of it were left.", why, reader.waiting)
        del self._readers[reader.transport]
        reader.transport.abort()

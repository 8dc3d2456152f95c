"""Bounds on connections, enforced in front of uvicorn's HTTP protocol.

uvicorn accepts headers, trailers and pipelined requests without limit, however slowly they come. It also closes a
socket that the client still writes to, so that the client loses the answer. `BoundedConnection` stands between the
transport and uvicorn's protocol: its own parser sees each read first, and a read that breaks a bound never reaches
uvicorn. `InTurn` stands between uvicorn and the application: it starts requests in order of arrival.

uvicorn writes an answer to its connection at once, and unread bytes stay buffered. Without a bound, a client that asks
for large answers and reads none could hold 20 MB with each small request, for as long as it likes. `UnreadAnswers`
bounds how many bytes wait so, and for how long.

Nothing of uvicorn is overridden, and no attribute of its protocol is read. This file relies on four facts, which
`tests/api/http/test_uvicorn.py` checks:

- `uvicorn.Config(http=make)` calls `make` for each connection, with keyword arguments alone;
- `HttpToolsProtocol` is made with the same arguments and is driven by the methods of `asyncio.Protocol`;
- `scope["state"]` of a request is a copy of the `app_state` that its protocol was made with;
- the headers of an answer are one write to the transport, and so is each chunk.
"""

import asyncio
import logging
import select
import socket
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable
from typing import Any, Final, cast

import httptools
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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


class _Reader:
    """How one client reads, since its answer began to wait. Times are by the event loop's clock."""

    def __init__(self, transport: "LingeringTransport", now: float) -> None:
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

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()  # connections of each address
        self.readers: dict[LingeringTransport, _Reader] = {}
        """The connections whose answers wait to be read."""
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, address: str) -> bool:
        """Count a connection until `leave`; False if the address has too many."""
        self._open[address] += 1
        return self._open[address] <= OF_ADDRESS

    def leave(self, address: str) -> None:
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    @property
    def waiting(self) -> int:
        """Bytes of all answers that wait to be read, when they were last looked at."""
        return sum(reader.waiting for reader in self.readers.values())

    def add(self, transport: "LingeringTransport") -> None:
        """Watch a connection whose answer waits to be read."""
        loop = asyncio.get_running_loop()
        self.readers[transport] = _Reader(transport, loop.time())
        if self._timer is None:
            self._timer = loop.call_later(LOOK_SECONDS, self._look)
        self._hold(loop.time())

    def remove(self, transport: "LingeringTransport") -> None:
        """Stop watching a connection whose answer was read, or which is closed."""
        self.readers.pop(transport, None)
        if not self.readers and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._hold(now)
        for reader in list(self.readers.values()):
            if now - reader.moved > STILL_SECONDS:
                self._cut(reader, "read nothing of its answer")
        self._timer = loop.call_later(LOOK_SECONDS, self._look) if self.readers else None

    def _hold(self, now: float) -> None:
        """Update all readers, and cut off the slowest, the longest stalled first, until the others have room."""
        for reader in self.readers.values():
            reader.look(now)
        waiting = self.waiting
        while waiting > UNREAD_BYTES and len(self.readers) > 1:
            slowest = min(self.readers.values(), key=lambda reader: (reader.rate(now), reader.moved))
            waiting -= slowest.waiting
            self._cut(slowest, "read its answer most slowly while too many waited")

    def _cut(self, reader: _Reader, why: str) -> None:
        log.info("Cut off a client that %s: %d bytes of it were left.", why, reader.waiting)
        del self.readers[reader.transport]
        reader.transport.abort()


HEADER_BYTES: Final = 64 << 10
"""The most bytes of one request's address, header names and header values, trailers included."""
HEADERS: Final = 200
HEAD_SECONDS: Final = 30.0
"""Limit from the connection, or from the first byte of a later request, to the end of the request's headers."""
HEADER_COST: Final = 32
"""Bytes counted for each header beside its text: a thousand empty headers are not free."""
IN_LINE: Final = 64
"""Requests of one connection that may wait behind the one being answered."""
LINGER_SECONDS: Final = 2.0
"""Time for a refused client to read its answer and to stop sending."""
CONNECTION: Final = "pippin.connection"
"""The key of a request's `BoundedConnection` in the `state` of its scope."""

REFUSAL: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b"
)
BODY: Final = (
    b'{"error":{"message":"The request headers are too large.","type":"invalid_request_error",'
    b'"param":null,"code":"header_too_large"}}'
)
TOO_LARGE: Final = REFUSAL % (len(BODY), BODY)
UNANSWERED: Final = b""
"""The refusal of a client with too many requests in line: none, for it already has answers to read."""


class OutOfBoundsError(Exception):
    """Stops the parser in the middle of a read."""


CHUNKED: Final = b"transfer-encoding: chunked\r\n"


class Unchunked:
    """Passes on an answer without the chunked coding, which HTTP/1.0 clients do not know (RFC 9112, section 6.1): its
    headers are one write, and each chunk is one.

    The end of such an answer is the end of the connection.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._begun = self._chunked = False

    def __call__(self, data: bytes) -> None:
        if not self._begun:
            self._begun, self._chunked = True, CHUNKED in data
            self._write(data.replace(CHUNKED, b"connection: close\r\n"))
        elif self._chunked:
            size, _, rest = data.partition(b"\r\n")
            self._write(rest[: int(size or b"0", 16)])
        else:
            self._write(data)


class LingeringTransport:
    """A transport whose `close` lets the client read the answer.

    Closing a socket while bytes of the client are unread or still arrive resets the connection, and the client loses
    what it has not read yet. So `close` sends EOF first, and input is discarded until the client closes or
    `LINGER_SECONDS` are over (RFC 9112, section 9.6).
    """

    def __init__(self, transport: asyncio.Transport, expects_more: Callable[[], bool]) -> None:
        self._transport = transport
        self._expects_more = expects_more
        self._timer: asyncio.TimerHandle | None = None
        # Called for each piece of an answer, so it bypasses `__getattr__`.
        self.write: Callable[[bytes], None] = transport.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write_unchunked(self) -> None:
        """Write the answer to come without the chunked coding."""
        self.write = Unchunked(self._transport.write)

    def is_closing(self) -> bool:
        return self._timer is not None or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        # TLS cannot close one direction alone.
        if not self._expects_more() or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.close)
        self._transport.write_eof()
        self._transport.resume_reading()

    def closed(self) -> None:
        """Drop the timer and the reference to the connection, which is gone."""
        if self._timer is not None:
            self._timer.cancel()
        self._expects_more = bool


def address_of(transport: asyncio.BaseTransport | LingeringTransport) -> str:
    """The address of a client; empty for one that is connected through a file."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""


class BoundedConnection(asyncio.Protocol):
    """One connection of a client; forwards to uvicorn the reads that stay within the bounds."""

    def __init__(self, unread: UnreadAnswers, app_state: dict[str, Any], **arguments: Any) -> None:
        """`unread` is shared by all connections of a server; uvicorn gives the other arguments."""
        self.lost = False
        self._unread = unread
        self._http = HttpToolsProtocol(app_state=app_state | {CONNECTION: self}, **arguments)
        self._parser = httptools.HttpRequestParser(self)
        # uvicorn's parser is set the same way; the two must agree on where a request ends.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._header_bytes = self._headers = 0
        self._bytes_since_event = 0
        self._unanswered = 0
        self._expects_more = False
        self._refusal: bytes | None = None
        self._head_timer: asyncio.TimerHandle | None = None

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = LingeringTransport(cast(asyncio.Transport, transport), lambda: self._expects_more)
        self._http.connection_made(cast(asyncio.Transport, self._transport))
        self._start_timer()
        if not self._unread.enter(address_of(transport)):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._unread.leave(address_of(self._transport))
        self._stop_timer()
        self._unread.remove(self._transport)
        self._transport.closed()
        self._http.connection_lost(exc)
        # A reference cycle is freed by the garbage collector, which stops everything: for a quarter of a second when
        # a few hundred connections closed at once.
        del self._http, self._parser

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._bytes_since_event += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # uvicorn continues in HTTP/1.1
        except httptools.HttpParserError:
            self._expects_more = True  # and uvicorn answers 400, unless a bound was broken
        # The parser reports a header only when it is complete, so its bytes are counted here.
        if self._refusal is None and self._bytes_since_event > HEADER_BYTES:
            self._refusal = TOO_LARGE
        if self._refusal is None:
            self._http.data_received(data)
            return
        self._expects_more = True
        # While a request is being answered, the refusal would become part of that answer.
        if not self._unanswered:
            self._transport.write(self._refusal)
        self._transport.close()

    def eof_received(self) -> None:
        self._http.eof_received()

    def pause_writing(self) -> None:
        self._unread.add(self._transport)
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._unread.remove(self._transport)
        self._http.resume_writing()

    # Called by the parser.

    def on_message_begin(self) -> None:
        # Thousands of requests fit into one read.
        if self._unanswered > IN_LINE:
            self._refusal = UNANSWERED
            raise OutOfBoundsError
        self._header_bytes = self._headers = self._bytes_since_event = 0
        self._start_timer()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        self._count(len(name) + len(value) + HEADER_COST)

    def on_headers_complete(self) -> None:
        self._unanswered += 1
        self._expects_more = True
        self._stop_timer()
        if self._parser.get_http_version() == "1.0":
            self._transport.write_unchunked()

    def on_body(self, _: bytes) -> None:
        self._bytes_since_event = 0

    def on_message_complete(self) -> None:
        self._expects_more = False

    # Called by `InTurn`.

    def answered(self) -> None:
        """Count one request of this connection as answered."""
        self._unanswered -= 1

    def _count(self, size: int) -> None:
        self._bytes_since_event = 0
        self._header_bytes += size
        if self._header_bytes > HEADER_BYTES or self._headers > HEADERS:
            self._refusal = TOO_LARGE
            raise OutOfBoundsError

    def _start_timer(self) -> None:
        self._stop_timer()
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_SECONDS, self._transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


IN_A_TURN: Final = 4
"""Requests started in one turn of the event loop. Each takes up to a millisecond before it first awaits anything."""
ACCEPT_SECONDS: Final = 0.02
"""How long waiting connections go first; after that, requests start in any case."""


def accept_queue(listeners: Iterable[socket.socket]) -> Callable[[], bool]:
    """A function that tells whether connections wait to be accepted."""
    poll = select.poll()
    for listener in listeners:
        poll.register(listener, select.POLLIN)
    return lambda: bool(poll.poll(0))


class InTurn:
    """An ASGI application that starts the requests of all `BoundedConnection`s in order of arrival, a few in each turn
    of the event loop.

    The loop accepts one connection in each turn. So requests are held back for a moment while connections wait:
    otherwise the last one, perhaps a request for `/health`, would wait until all others have started.
    """

    def __init__(self, app: ASGIApp, connections_wait: Callable[[], bool], prompt: Container[str]) -> None:
        """`prompt`: paths of requests that do not wait for their turn."""
        self._app = app
        self._connections_wait = connections_wait
        self._prompt = prompt
        self._waiting: deque[asyncio.Event] = deque()
        self._next: asyncio.Handle | None = None
        self._began = 0.0  # time of the last turn, by the loop's clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: BoundedConnection = scope["state"].pop(CONNECTION)
        try:
            if scope["path"] not in self._prompt:
                await self._wait()
            if not connection.lost:
                await self._app(scope, receive, send)
        finally:
            connection.answered()

    async def _wait(self) -> None:
        """Wait for a turn, which is never the current one of the loop."""
        turn = asyncio.Event()
        self._waiting.append(turn)
        if self._next is None:
            loop = asyncio.get_running_loop()
            self._began = loop.time()
            self._next = loop.call_soon(self._turn)
        await turn.wait()

    def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._began > ACCEPT_SECONDS or not self._connections_wait():
            for _ in range(min(IN_A_TURN, len(self._waiting))):
                self._waiting.popleft().set()
            self._began = loop.time()
        self._next = loop.call_soon(self._turn) if self._waiting else None

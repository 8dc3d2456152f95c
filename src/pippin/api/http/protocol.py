"""Bounds on a connection, kept in front of uvicorn's HTTP protocol.

uvicorn takes headers, trailers and pipelined requests without end and however slowly they come, and it closes a socket
that the client still writes to, so that the client loses the answer. `BoundedConnection` stands between the transport
and uvicorn's protocol: a parser of its own sees each read first, and a read that breaks a bound never reaches uvicorn.
`InTurn` stands between uvicorn and the application: it begins requests in their turn.

Nothing of uvicorn is overridden, and no attribute of its protocol is read. What is relied on, and held by
`tests/api/http/test_uvicorn.py`:

- `uvicorn.Config(http=SomeClass)` makes one `SomeClass` for each connection, with keyword arguments alone;
- `HttpToolsProtocol` is made with the same arguments and is driven by the methods of `asyncio.Protocol`;
- `scope["state"]` of a request is a copy of the `app_state` that its protocol was made with.
"""

import asyncio
import select
import socket
from collections import deque
from collections.abc import Callable, Container
from typing import Any, Final, cast

import httptools
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pippin.api.http.unread import UnreadAnswers

HEADER_BYTES: Final = 64 << 10
"""The most bytes of one request's address, header names and header values, trailers included."""
HEADERS: Final = 200
HEAD_SECONDS: Final = 30.0
"""From the connection, or from the first byte of a later request, to the end of the request's headers."""
HEADER_COST: Final = 32
"""Bytes that a header counts beside its text: a thousand empty ones are not free."""
IN_LINE: Final = 64
"""Requests of one connection that may wait behind the one that is being answered."""
LINGER_SECONDS: Final = 2.0
"""For a refused client to read its answer and to stop sending."""
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
"""The refusal of a client that fills its line: it has answers to read already."""


class OutOfBoundsError(Exception):
    """Stops the parser in the middle of a read."""


class LingeringTransport:
    """A transport whose `close` lets the client hear the answer.

    A socket that is closed while bytes of the client are unread, or still come, is reset, and the client loses what it
    has not read yet. So the end of the answer is sent first, and what comes is thrown away until the client closes or
    `LINGER_SECONDS` are over (RFC 9112, section 9.6).
    """

    def __init__(self, transport: asyncio.Transport, expects_more: Callable[[], bool]) -> None:
        self._transport = transport
        self._expects_more = expects_more
        self._timer: asyncio.TimerHandle | None = None
        # Each piece of an answer passes here, so it takes no detour over `__getattr__`.
        self.write = transport.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def abort(self) -> None:
        self._transport.abort()

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
        """Forget timer and connection: it is gone."""
        if self._timer is not None:
            self._timer.cancel()
        self._expects_more = bool


class BoundedConnection(asyncio.Protocol):
    """One connection of a client; hands to uvicorn what keeps to the bounds."""

    def __init__(
        self, app_state: dict[str, Any], unread: UnreadAnswers | None = None, **arguments: Any
    ) -> None:
        self.lost = False
        self._unread = UnreadAnswers() if unread is None else unread
        self._http = HttpToolsProtocol(app_state=app_state | {CONNECTION: self}, **arguments)
        self._parser = httptools.HttpRequestParser(self)
        # uvicorn's parser is set the same way; the two must agree on where a request ends.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._header_bytes = self._headers = 0
        self._bytes_since_event = 0
        self._unanswered = 0
        self._expects_more = False
        self._paused = False  # what was written waits for the client
        self._refusal: bytes | None = None
        self._head_timer: asyncio.TimerHandle | None = None

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = LingeringTransport(cast(asyncio.Transport, transport), lambda: self._expects_more)
        self._http.connection_made(cast(asyncio.Transport, self._transport))
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._stop_timer()
        if self._paused:
            self._unread.remove(self._transport)
        self._transport.closed()
        self._http.connection_lost(exc)
        # What refers to itself is freed by a collection of garbage, which holds all up: that of some hundred
        # connections, which left at once, for a quarter of a second.
        del self._http, self._parser

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._bytes_since_event += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # uvicorn goes on in HTTP/1.1
        except httptools.HttpParserError:
            self._expects_more = True  # and uvicorn answers 400, unless a bound was broken
        # The parser holds a header until it is whole, and tells nothing of it before: so its bytes are counted here.
        if self._refusal is None and self._bytes_since_event > HEADER_BYTES:
            self._refusal = TOO_LARGE
        if self._refusal is None:
            self._http.data_received(data)
        else:
            self._refuse(self._refusal)

    def eof_received(self) -> None:
        self._http.eof_received()

    def pause_writing(self) -> None:
        self._paused = True
        self._unread.add(self._transport)
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._paused = False
        self._unread.remove(self._transport)
        self._http.resume_writing()

    # What the parser calls.

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

    def on_body(self, _: bytes) -> None:
        self._bytes_since_event = 0

    def on_message_complete(self) -> None:
        self._expects_more = False

    # What `InTurn` calls.

    def answered(self) -> None:
        """Count one request off the line of this connection."""
        self._unanswered -= 1

    def _count(self, size: int) -> None:
        self._bytes_since_event = 0
        self._header_bytes += size
        if self._header_bytes > HEADER_BYTES or self._headers > HEADERS:
            self._refusal = TOO_LARGE
            raise OutOfBoundsError

    def _refuse(self, refusal: bytes) -> None:
        self._expects_more = True
        # Beside a request that is being answered, the refusal would become a part of that answer.
        if not self._unanswered:
            self._transport.write(refusal)
        self._transport.close()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_SECONDS, self._transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def connections(unread: UnreadAnswers) -> type[BoundedConnection]:
    """The class of a server's connections, which share the room for answers that wait to be read."""

    class Connection(BoundedConnection):
        def __init__(self, **arguments: Any) -> None:
            super().__init__(unread=unread, **arguments)

    return Connection


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


class InTurn:
    """An ASGI application that begins the requests of all `BoundedConnection`s a few in each turn of the event loop."""

    def __init__(self, app: ASGIApp, turns: Turns, prompt: Container[str]) -> None:
        """`prompt` holds the paths of requests that do not wait for their turn."""
        self._app = app
        self._turns = turns
        self._prompt = prompt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: BoundedConnection = scope["state"].pop(CONNECTION)
        try:
            if scope["path"] not in self._prompt:
                await self._turn()
            if not connection.lost:
                await self._app(scope, receive, send)
        finally:
            connection.answered()

    async def _turn(self) -> None:
        turn = asyncio.Event()
        self._turns.wait(turn.set)
        await turn.wait()

"""uvicorn's HTTP protocol with bounds: on what comes before a request is understood, on how many begin at once."""

import asyncio
from functools import partial
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pippin.api.http.lingering import LingeringTransport
from pippin.api.http.turns import Turns

HEADER_BYTES: Final = 64 << 10  # of one request: address, names and values
HEADERS: Final = 200
HEAD_SECONDS: Final = 30.0  # from the connection, or the first byte of a request, to the end of its headers
ENTRY_BYTES: Final = 32  # that a header costs beside its text
IN_LINE: Final = 64  # requests of one connection behind the one that is answered

REFUSAL: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b"
)
BODY: Final = (
    b'{"error":{"message":"The request headers are too large.","type":"invalid_request_error",'
    b'"param":null,"code":"header_too_large"}}'
)
TOO_LARGE: Final = REFUSAL % (len(BODY), BODY)


class HeadTooLargeError(Exception):
    pass


class TooManyInLineError(Exception):
    pass


class BoundedHttp(HttpToolsProtocol):
    """httptools itself takes headers without end, however slowly they come."""

    _head_bytes = 0
    _untold = 0  # bytes since the parser last told of something
    _head_timer: asyncio.TimerHandle | None = None
    _refusal: bytes | None = None  # what to answer to bytes that are not taken; may be nothing

    def __init__(self, *args: Any, turns: Turns, prompt: frozenset[str], **named: Any) -> None:
        """`prompt`: paths that don't wait for their turn."""
        super().__init__(*args, **named)
        self._turns = turns
        self._prompt = prompt

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._lingering = LingeringTransport(transport, self._expects_more)
        self.transport = cast(asyncio.Transport, self._lingering)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._lingering.closed()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= IN_LINE:  # thousands fit into one read
            self._refusal = b""
            raise TooManyInLineError
        self._head_bytes = self._untold = 0
        self._start_timer()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._untold = 0
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._untold = 0
        self._count(len(name) + len(value) + ENTRY_BYTES)
        if len(self.headers) >= HEADERS:
            self._count(HEADER_BYTES)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._untold = 0
        super().on_body(body)

    def data_received(self, data: bytes) -> None:
        """The parser tells of a header when it has all of it, and holds what came before: so reads count too."""
        if self.transport.is_closing():
            return
        self._untold += len(data)
        super().data_received(data)
        if self._untold > HEADER_BYTES and self._refusal is None:
            self._refuse(TOO_LARGE)

    def _expects_more(self) -> bool:
        return self._refusal is not None or (self.cycle is not None and self.cycle.more_body)

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls it for whatever the parser raises, which may be our own."""
        if self._refusal is None:
            self._refusal = b""
            super().send_400_response(msg)
        else:
            self._refuse(self._refusal)

    def _refuse(self, refusal: bytes) -> None:
        self._refusal = refusal
        if self.cycle is None or self.cycle.response_complete:  # else this would be a part of that answer
            self.transport.write(refusal)
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["path"] in self._prompt:
            super()._start_asgi_task(cycle, app)
        else:
            self._turns.wait(partial(self._begin, cycle, app))

    def _begin(self, cycle: RequestResponseCycle, app: Any) -> None:
        if not cycle.disconnected:
            super()._start_asgi_task(cycle, app)

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEADER_BYTES:
            self._refusal = TOO_LARGE
            raise HeadTooLargeError

    def _start_timer(self) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

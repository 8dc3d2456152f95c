"""Bounds on WebSocket connections, enforced in front of uvicorn's protocol, as `protocol` does for HTTP.

uvicorn buffers a message until it is complete, so bytes are counted as they arrive, not when their message reaches the
application. Compression is not offered: a kilobyte could expand to a megabyte before anything is counted.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from pippin.api.http.body import ARRIVING
from pippin.api.http.protocol import LingeringTransport
from pippin.api.http.unread import UnreadAnswers

TRY_LATER: Final = 1013
"""The close code for a lack of memory (IANA's registry of WebSocket close codes)."""
REASON: Final = b"The server holds as many bytes of your messages as it can; send fewer at a time."
CLOSE_FRAME: Final = bytes([0x88, 2 + len(REASON)]) + TRY_LATER.to_bytes(2) + REASON
"""RFC 6455, section 5.5.1; a server's frames are not masked."""


class UvicornSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol; when the server stops, closing the connection is left to the application."""

    stopped: Callable[[], None]

    def shutdown(self) -> None:
        self.stopped()


class BoundedWebSocket(asyncio.Protocol):
    """One WebSocket connection of a client; forwards to uvicorn the bytes that there is memory for."""

    def __init__(
        self, app_state: dict[str, Any], unread: UnreadAnswers | None = None, **arguments: Any
    ) -> None:
        self._unread = UnreadAnswers() if unread is None else unread
        self._socket = UvicornSocket(app_state=app_state | {ARRIVING: self}, **arguments)
        self._socket.stopped = self._stop
        self._stopping = False
        self._on_stop: Callable[[], object] | None = None
        self._take: Callable[[int], bool] | None = None
        self._early = 0  # bytes that came before `count_with`
        self._refused = False

    def count_with(self, take: Callable[[int], bool]) -> None:
        """Call `take` from now on with the number of bytes that came; it returns whether there is room for them."""
        self._take = take
        if not take(self._early):
            self._refuse()

    def on_stop(self, call: Callable[[], object]) -> None:
        """Call `call` once when the server begins to stop: the reader of the messages then closes the connection."""
        self._on_stop = call
        if self._stopping:
            call()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = LingeringTransport(cast(asyncio.Transport, transport), lambda: True)
        self._socket.connection_made(cast(asyncio.Transport, self._transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._unread.remove(self._transport)
        self._transport.closed()
        self._socket.connection_lost(exc)
        self._take = self._on_stop = None  # these callbacks refer to this object

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._take is None:
            self._early += len(data)
        elif not self._take(len(data)):
            self._refuse()
            return
        self._socket.data_received(data)

    def eof_received(self) -> None:
        self._socket.eof_received()

    def pause_writing(self) -> None:
        self._unread.add(self._transport)
        self._socket.pause_writing()

    def resume_writing(self) -> None:
        self._unread.remove(self._transport)
        self._socket.resume_writing()

    def _stop(self) -> None:
        self._stopping = True
        if self._on_stop is not None:
            self._on_stop()

    def _refuse(self) -> None:
        # uvicorn writes whole frames, so this one never lands inside another.
        self._refused = True
        self._transport.write(CLOSE_FRAME)
        self._transport.close()


def web_sockets(unread: UnreadAnswers) -> type[BoundedWebSocket]:
    """The class of a server's WebSocket connections, which share one bound on unread answers."""

    class Connection(BoundedWebSocket):
        def __init__(self, **arguments: Any) -> None:
            super().__init__(unread=unread, **arguments)

    return Connection

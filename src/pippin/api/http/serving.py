"""uvicorn, set up as the server runs it."""

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, cast

import uvicorn
from starlette.status import WS_1013_TRY_AGAIN_LATER
from starlette.types import ASGIApp
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from pippin.api.http.body import ARRIVING, MIB
from pippin.api.http.protocol import BoundedConnection, LingeringTransport, UnreadAnswers, address_of
from pippin.config.options.server import ServerOptions

log = logging.getLogger(__name__)


REASON: Final = b"The server holds as many bytes of your messages as it can; send fewer at a time."
CLOSE_FRAME: Final = bytes([0x88, 2 + len(REASON)]) + WS_1013_TRY_AGAIN_LATER.to_bytes(2) + REASON
"""RFC 6455, section 5.5.1; a server's frames are not masked."""


class UvicornSocket(WebSocketsSansIOProtocol):
    """uvicorn's protocol; when the server stops, closing the connection is left to the application."""

    stopped: Callable[[], None]

    def shutdown(self) -> None:
        self.stopped()


class BoundedWebSocket(asyncio.Protocol):
    """One WebSocket connection of a client; forwards to uvicorn the bytes that there is memory for."""

    def __init__(self, unread: UnreadAnswers, app_state: dict[str, Any], **arguments: Any) -> None:
        """`unread` is shared by all connections of a server; uvicorn gives the other arguments."""
        self._unread = unread
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
        self._unread.leave(address_of(self._transport))  # entered as the HTTP connection that it was
        self._unread.remove(self._transport)
        self._transport.closed()
        self._socket.connection_lost(exc)
        self._take = self._on_stop = None  # these callbacks refer to this object

    def data_received(self, data: bytes) -> None:
        if self._refused or self._transport.is_closing():
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


PING_SECONDS: Final = 30.0  # between signs of life of a WebSocket
KEEP_CONNECTION: Final = 75  # idle seconds
LAST_WORDS: Final = 1.0
"""Seconds for readers to forward the error of a run that was ended, and for refusals to be sent."""
LOOK: Final = 0.05  # seconds between checks for open connections; uvicorn has no event for it


class Uvicorn(uvicorn.Server):
    """A uvicorn server that handles no signals and stops in its own order: after the drain timeout, running requests
    end with an error instead of a cut connection."""

    def __init__(
        self,
        app: ASGIApp,
        options: ServerOptions,
        end_all: Callable[[], None],
        busy: Callable[[], object] = lambda: False,
    ) -> None:
        """`end_all` ends all running requests with an error, which the application still sends; `busy` returns whether
        the application has work that belongs to no connection."""
        self._end_all = end_all
        self._busy = busy
        self._leaves_at = math.inf  # by the loop's clock
        unread = UnreadAnswers()
        super().__init__(
            uvicorn.Config(
                app,
                http=cast(Any, partial(BoundedConnection, unread)),
                ws=cast(Any, partial(BoundedWebSocket, unread)),
                ws_per_message_deflate=False,
                ws_max_size=int(options.max_body_mb * MIB),
                ws_ping_interval=PING_SECONDS,
                ws_ping_timeout=PING_SECONDS,
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=True,
                timeout_keep_alive=KEEP_CONNECTION,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def leave(self, seconds: float) -> None:
        """Stop: running requests have this many seconds to finish. A later call can only shorten that."""
        self._leaves_at = min(self._leaves_at, asyncio.get_running_loop().time() + seconds)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End every request and connection in order.

        No new connections are accepted, and idle ones are closed. Running requests may finish within the time that
        `leave` set; then they end with an error that the client gets in the format of its API. Requests that do not
        react are cancelled: refused with 503 if nothing of the reply was sent, else cut off.
        """
        for server in self.servers:
            server.close()
        for each in sockets or []:
            each.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        loop = asyncio.get_running_loop()
        while (self._occupied or self._busy()) and loop.time() < self._leaves_at:  # noqa: ASYNC110
            await asyncio.sleep(LOOK)
        self._end_all()
        await self._emptied(LAST_WORDS)
        if late := list(self.server_state.tasks):
            log.warning("%d requests did not end in time; they are refused, or cut off.", len(late))
            for task in late:
                task.cancel()
            await self._emptied(LAST_WORDS)

    @property
    def _occupied(self) -> bool:
        return bool(self.server_state.connections or self.server_state.tasks)

    async def _emptied(self, within: float) -> None:
        """Wait until all requests have ended and all connections are closed, but at most `within` seconds."""
        ends = asyncio.get_running_loop().time() + within
        while self._occupied and asyncio.get_running_loop().time() < ends:  # noqa: ASYNC110
            await asyncio.sleep(LOOK)

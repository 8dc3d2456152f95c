"""One WebSocket connection: messages are read while an answer is written, so that a disconnect is noticed at once."""

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final
from uuid import uuid4

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.websockets import WebSocket, WebSocketDisconnect

from pippin.api.access.exchange import SCOPE_KEY, Exchange, exchange_of
from pippin.api.http.body import ARRIVING, HELD, HeldBytes, Presence
from pippin.core.decoding import from_json
from pippin.core.errors import SHUTTING_DOWN, ServerError

log = logging.getLogger(__name__)

WAITING: Final = 16
"""Messages that a client may send ahead of the one being answered."""
TOO_MANY: Final = 1008  # close code: policy violation
TOO_BIG: Final = 1009  # close code: a message larger than --max-body-mb
SPENT: Final = 1001  # close code: the connection is too old, or the server stops
LONGEST_SECONDS: Final = 3600.0
"""OpenAI's limit: a connection is closed after an hour, and the client opens another."""

PROTOCOL: Final = "realtime"
"""The subprotocol that OpenAI's clients offer beside their key; browsers can't send a key in another way."""


class Channel(Presence):
    """An accepted connection. It is a `Presence`: a running answer is told when the client disconnects."""

    def __init__(self, socket: WebSocket) -> None:
        super().__init__()
        self._socket = socket
        self._messages: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None
        self.divert: Callable[[str | bytes], bool] = lambda message: False
        """Is offered each message when it comes; those that it takes are not among `messages`."""
        self.held: HeldBytes = socket.scope[HELD]
        """The bytes of messages that wait, and of what is kept after an answer."""
        self._stopping = False

    async def open(self) -> None:
        offered = self._socket.scope.get("subprotocols", [])
        await self._socket.accept(subprotocol=PROTOCOL if PROTOCOL in offered else None)
        self._reading = asyncio.create_task(self._read(), name="websocket")
        self._socket.scope["state"][ARRIVING].on_stop(self._stop)

    async def messages(self) -> AsyncIterator[str | bytes]:
        """The client's messages, until it leaves, the connection is too old, or the server stops."""
        ends = time.monotonic() + LONGEST_SECONDS
        while not self._stopping and (left := ends - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(left):
                    message = await self._messages.get()
            except TimeoutError:
                break
            if message is None and self.gone:
                return
            if message is None:
                continue
            yield message
            self.held.free(size_of(message))
        old = "The connection is an hour old; open another."
        await self.end(SPENT, SHUTTING_DOWN.message if self._stopping else old)

    async def send(self, event: bytes) -> None:
        """Send one event, as JSON. Does nothing after the client has left."""
        if self.gone:
            return
        try:
            await self._socket.send_text(event.decode())
        except (WebSocketDisconnect, RuntimeError):  # it was closed, but the reader has not seen that yet
            self.left()

    async def end(self, code: int, reason: str) -> None:
        """Close the connection, unless the client has left meanwhile."""
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await self._socket.close(code, reason)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        while (message := await self._socket.receive())["type"] != "websocket.disconnect":
            if self._messages.qsize() >= WAITING:
                await self.end(TOO_MANY, f"More than {WAITING} messages wait to be answered.")
                break
            text = message.get("text")
            data = text if text is not None else message.get("bytes") or b""
            if self.divert(data):
                self.held.free(size_of(data))
            else:
                self._messages.put_nowait(data)
        if message.get("code") == TOO_BIG:
            log.warning("A WebSocket is closed: %s.", message.get("reason") or "a message is too large")
        self.left()

    def _stop(self) -> None:
        """The server stops: finish the current answer, and answer nothing after it."""
        self._stopping = True
        self._messages.put_nowait(None)

    def left(self) -> None:
        if not self.gone:
            self._messages.put_nowait(None)
            super().left()


def size_of(message: str | bytes) -> int:
    """The size of a message in bytes on the wire."""
    return len(message) if isinstance(message, bytes) or message.isascii() else len(message.encode())


def event_of(message: str | bytes) -> dict[str, Any]:
    """The event in a client's message. Raises `ServerError`."""
    if isinstance(message, bytes):
        raise ServerError("invalid_request", "Send events as text messages that hold JSON.")
    try:
        event = from_json(message, dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ServerError("invalid_request", f"The event is not valid JSON: {error}.") from None
    if not isinstance(event.get("type"), str):
        raise ServerError("invalid_request", "`type` is required: the name of the event.", "type")
    return event


def asked_on(socket: HTTPConnection, path: str) -> Request:
    """A stand-in for one request on a connection, with the connection's headers and rights, and its own exchange."""
    connection = exchange_of(socket.scope)
    exchange: Exchange = dataclasses.replace(
        connection,
        id=uuid4().hex,
        own_id=True,
        path=path,
        route=path,
        started=time.perf_counter(),
        status=None,
        gone=False,
        headers={},
        refusal="",
        facts={},
    )
    scope = {**socket.scope, "type": "http", "method": "POST", "path": path, SCOPE_KEY: exchange}

    async def receive() -> dict[str, Any]:
        raise AssertionError("the body of such a request is given")

    return Request(scope, receive)

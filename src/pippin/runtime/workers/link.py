"""The API server's end of the socket to one worker: never waits, never blocks the event loop."""

import asyncio
import socket
from collections.abc import Callable
from typing import Final, cast

import msgspec

from pippin.core.decoding import message_decoder
from pippin.core.frames import FrameBuffer, FrameError, header
from pippin.core.link import Order, Report
from pippin.core.models import WorkerSpec

SERIAL_MARK: Final = "#"


def request_id(wire_id: str) -> str:
    """The request's id of an id on the wire, which has a serial number behind it."""
    return wire_id.rpartition(SERIAL_MARK)[0]


UNSENT_BYTES: Final = 512 << 20  # orders waiting for a worker that does not read


class LinkFull(Exception):
    """The worker has not read its orders for so long that no more are taken."""


class Link(asyncio.Protocol):
    """The socket to one worker, as an asyncio protocol.

    Reports go to `on_report` as they come; `on_closed` is told once, with the fault if the frames broke.
    """

    def __init__(
        self, on_report: Callable[[Report], None], on_closed: Callable[[Exception | None], None]
    ) -> None:
        self._on_report = on_report
        self._on_closed = on_closed
        self._buffer = FrameBuffer()
        self._decode = message_decoder(Report).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._transport: asyncio.WriteTransport | None = None
        self._fault: Exception | None = None

    @classmethod
    async def open(
        cls,
        connection: socket.socket,
        on_report: Callable[[Report], None],
        on_closed: Callable[[Exception | None], None],
    ) -> "Link":
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(on_report, on_closed), sock=connection)
        return link

    def send(self, message: Order | WorkerSpec) -> None:
        """Queue a frame for the worker. Raises `LinkFull`; silently drops it when the worker is gone."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > UNSENT_BYTES:
            raise LinkFull
        payload = self._encode(message)
        transport.writelines((header(payload), payload))  # not joined here: it may be long

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._buffer.feed(data):
                self._on_report(self._decode(payload))
        except (FrameError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._fault = error
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._on_closed(self._fault)

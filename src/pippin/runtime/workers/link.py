"""The API server's end of the socket to one worker: the link, and a mailbox for the events of each request.

The link never waits and never blocks the event loop. A slow reader finds what came meanwhile joined: deltas of the same
part become one. The event loop is woken once for each engine step, not for each event.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final, cast

import msgspec

from pippin.core.decoding import message_decoder
from pippin.core.errors import ErrorReport
from pippin.core.events import (
    Accepted,
    Ending,
    Event,
    Failed,
    Finished,
    PartDelta,
    PartEnded,
    PartStarted,
    Usage,
    merged,
)
from pippin.core.link import FrameBuffer, FrameError, Order, Report, header
from pippin.core.models import WorkerSpec

LARGEST: Final = 64 << 20  # bytes that may wait for a reader who wants them as they come
EVENT_BYTES: Final = 200  # about what a delta takes beside its text
TOKEN_BYTES: Final = 100
MERGE_AT: Final = 1024  # waiting events


class Mailbox:
    """The events of one request that wait for their single reader.

    `choices` is how many `Finished` a generation ends with; 0 for other tasks.
    """

    def __init__(self, choices: int, on_overflow: Callable[[], None]) -> None:
        self.complete = False
        self.held_back = False  # the reader shows nothing before the end
        self._events: list[Event] = []
        self._bytes = 0
        self._unfinished = set(range(choices))
        self._open_parts: dict[int, int] = {}  # of each choice: the part that has not ended
        self._completed: dict[int, int] = {}  # of each choice: tokens so far
        self._reader: asyncio.Future[None] | None = None
        self._whole = False  # the reader wants everything at once
        self._merge_at = MERGE_AT
        self._on_overflow = on_overflow

    def put(self, event: Event) -> None:
        """Add an event; what comes after the end is dropped."""
        if self.complete:
            return
        self._events.append(event)
        match event:
            case PartDelta(choice, _, text, tokens, completed):
                self._completed[choice] = completed
                self._bytes += EVENT_BYTES + len(text) + TOKEN_BYTES * len(tokens)
            case PartStarted(choice, index):
                self._open_parts[choice] = index
            case PartEnded(choice):
                self._open_parts.pop(choice, None)
            case Finished(choice):
                self._unfinished.discard(choice)
                self.complete = not self._unfinished
            case _:
                self.complete = isinstance(event, Ending)
        if len(self._events) >= self._merge_at:
            self._merge()
        if self._reader is not None and not self._reader.done() and (self.complete or not self._whole):
            self._reader.set_result(None)

    def fail(self, error: ErrorReport) -> None:
        """End the request with an error."""
        self.put(Failed(error))

    def cut(self, prompt_tokens: int) -> None:
        """End a generation where it stands: what was said so far is the answer."""
        for choice in sorted(self._unfinished):
            if choice in self._open_parts:
                self.put(PartEnded(choice, self._open_parts[choice]))
            usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=self._completed.get(choice, 0))
            self.put(Finished(choice, "cancelled", usage=usage))

    async def first(self) -> Event:
        """The event that came first, waiting for it. It stays for whoever takes the events, unless it is `Accepted`."""
        if not self._events and not self.complete:
            await self._word()
        first = self._events[0]
        if isinstance(first, Accepted):
            del self._events[0]
        return first

    async def take(self) -> list[Event]:
        """What has come since the last call, waiting for it; empty after the end."""
        if not self._events and not self.complete:
            await self._word()
        return self._emptied()

    async def take_all(self) -> list[Event]:
        """Everything up to the end, without waking anyone before."""
        self._whole = True
        if not self.complete:
            await self._word()
        return self._emptied()

    async def _word(self) -> None:
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _emptied(self) -> list[Event]:
        events = self._events
        self._events = []
        self._bytes, self._merge_at = 0, MERGE_AT
        return events if len(events) < 2 else merged(events)

    def _merge(self) -> None:
        """Join the deltas that wait. A request whose reader lets too much of it gather is ended."""
        self._events = merged(self._events)
        self._merge_at = 2 * len(self._events) + MERGE_AT
        if self._bytes > LARGEST and not self._whole and not self.complete:
            message = "The client reads its answer too slowly; it was cut off here."
            self.fail(ErrorReport(kind="too_large", message=message))
            self._on_overflow()


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

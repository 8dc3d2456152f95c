"""The API server's end of the socket to one worker, and a mailbox for the events of each request.

The link never blocks the event loop. Deltas of the same part are merged while a reader is slow. The event loop wakes
once per engine step, not once per event.
"""

import asyncio
import socket
from collections.abc import Callable, Collection
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
from pippin.core.link import (
    SERIAL_MARK,
    FrameBuffer,
    FrameError,
    Order,
    Report,
    header,
    request_id,
)
from pippin.core.models import WorkerSpec

LARGEST: Final = 64 << 20  # bytes that may queue for a reader that streams
EVENT_BYTES: Final = 200  # approximate size of a delta without its text
TOKEN_BYTES: Final = 100
MERGE_AT: Final = 1024  # waiting events


class Mailbox:
    """The queued events of one request, for a single reader.

    `choices` is the number of `Finished` events that end a generation; 0 for other tasks.
    """

    def __init__(self, choices: int, on_overflow: Callable[[], None]) -> None:
        self.complete = False
        self.held_back = False  # the reader shows nothing before the end
        self._events: list[Event] = []
        self._bytes = 0
        self._unfinished = set(range(choices))
        self._open_parts: dict[int, int] = {}  # by choice: the part that is still open
        self._completed: dict[int, int] = {}  # by choice: tokens so far
        self._reader: asyncio.Future[None] | None = None
        self._whole = False  # the reader wants all events at once
        self._merge_at = MERGE_AT
        self._on_overflow = on_overflow

    def put(self, event: Event) -> None:
        """Add an event; events after the end are dropped."""
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
        """End a generation early: the text so far becomes the answer."""
        for choice in sorted(self._unfinished):
            if choice in self._open_parts:
                self.put(PartEnded(choice, self._open_parts[choice]))
            usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=self._completed.get(choice, 0))
            self.put(Finished(choice, "cancelled", usage=usage))

    async def first(self) -> Event:
        """Wait for the first event and return it. It stays in the mailbox unless it is `Accepted`."""
        if not self._events and not self.complete:
            await self._word()
        first = self._events[0]
        if isinstance(first, Accepted):
            del self._events[0]
        return first

    async def take(self) -> list[Event]:
        """All events since the last call, waiting for at least one; empty after the end."""
        if not self._events and not self.complete:
            await self._word()
        return self._emptied()

    async def take_all(self) -> list[Event]:
        """Everything up to the end, in a single wake-up."""
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
        """Merge the queued deltas. Ends the request if its reader has let too much queue up."""
        self._events = merged(self._events)
        self._merge_at = 2 * len(self._events) + MERGE_AT
        if self._bytes > LARGEST and not self._whole and not self.complete:
            message = "The client reads its answer too slowly; it was cut off here."
            self.fail(ErrorReport(kind="too_large", message=message))
            self._on_overflow()


UNSENT_BYTES: Final = 512 << 20  # orders queued for a worker that does not read


class LinkFull(Exception):
    """The worker has left so many orders unread that no more are accepted."""


class Link(asyncio.Protocol):
    """The socket to one worker, as an asyncio protocol.

    `on_report` receives each report; `on_closed` is called once, with the error if the frames were malformed.
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

    async def open(self, connection: socket.socket) -> None:
        """Use this socket from now on."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=connection)

    def send(self, message: Order | WorkerSpec) -> None:
        """Queue a frame for the worker. Raises `LinkFull`; drops the frame if the link is not open."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > UNSENT_BYTES:
            raise LinkFull
        payload = self._encode(message)
        transport.writelines((header(payload), payload))  # not concatenated: the payload may be large

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


ENDED_IN_A_TURN: Final = 16  # requests of a dead worker that fail in one turn of the event loop


class Mailboxes:
    """The requests sent over one link, each with its mailbox."""

    def __init__(self) -> None:
        self._mailboxes: dict[str, Mailbox] = {}  # by wire id
        self._wire_ids: dict[str, str] = {}
        self._serial = 0

    @property
    def ids(self) -> Collection[str]:
        """Ids of the requests that have not ended."""
        return self._wire_ids.keys()

    def add(self, id: str, mailbox: Mailbox) -> str:
        """Deliver the events of a request to `mailbox` from now on; returns the id that the request has on the wire."""
        self._serial += 1
        # The serial number keeps late events of an earlier request with this id apart.
        wire_id = f"{id}{SERIAL_MARK}{self._serial}"
        self._mailboxes[wire_id] = mailbox
        self._wire_ids[id] = wire_id
        return wire_id

    def remove(self, id: str) -> str | None:
        """Drop a request, whose mailbox gets nothing more; returns its id on the wire, or None if it has ended."""
        wire_id = self._wire_ids.get(id)
        if wire_id is not None:
            self._forget(wire_id)
        return wire_id

    def fail_all(self, error: ErrorReport) -> list[str]:
        """End every request with this error; returns their ids on the wire."""
        waiting = self._mailboxes
        self._mailboxes, self._wire_ids = {}, {}
        _fail_some(list(waiting.values()), error)
        return list(waiting)

    def deliver(self, events: list[tuple[str, Event]]) -> None:
        mailboxes = self._mailboxes
        for wire_id, event in events:
            mailbox = mailboxes.get(wire_id)
            if mailbox is not None:  # else it was cancelled
                mailbox.put(event)
                if mailbox.complete:
                    self._forget(wire_id)

    def _forget(self, wire_id: str) -> None:
        self._mailboxes.pop(wire_id, None)
        self._wire_ids.pop(request_id(wire_id), None)


def _fail_some(mailboxes: list[Mailbox], error: ErrorReport) -> None:
    """End requests with an error, a few in each turn of the event loop.

    A thousand readers waking at once would delay everybody else.
    """
    for mailbox in mailboxes[:ENDED_IN_A_TURN]:
        mailbox.fail(error)
    if rest := mailboxes[ENDED_IN_A_TURN:]:
        asyncio.get_running_loop().call_soon(_fail_some, rest, error)

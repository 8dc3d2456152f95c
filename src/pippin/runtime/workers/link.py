"""The API server's end of the socket to one worker, and a mailbox for the events of each request.

The link never blocks the event loop. Deltas of the same part are merged while a reader is slow. The event loop wakes
once per engine step, not once per event.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, cast

import msgspec
from msgspec.structs import replace

from pippin.core.decoding import message_decoder
from pippin.core.errors import ErrorKind, ErrorReport, ServerError
from pippin.core.events import (
    Accepted,
    Ending,
    Event,
    Failed,
    Finished,
    PartDelta,
    PartEnded,
    PartStarted,
    Progress,
    PromptEcho,
    Restarted,
)
from pippin.core.link import (
    SERIAL_MARK,
    Cancel,
    FrameBuffer,
    FrameError,
    Order,
    Output,
    Report,
    Submit,
    header,
    merged,
    request_id,
)
from pippin.core.models import WorkerSpec
from pippin.core.tasks import Task

LARGEST: Final = 64 << 20  # bytes that may queue for a reader that streams
EVENT_BYTES: Final = 200  # approximate size of a delta without its text
TOKEN_BYTES: Final = 100
MERGE_AT: Final = 1024  # waiting events
LOST: Final[ErrorKind] = "worker_died"
DIFFERS: Final = ErrorReport(
    kind=LOST,
    message="The model's process died, and the next one answers otherwise, so the answer breaks off here.",
)


class DiffersError(Exception):
    """A request that runs again answers otherwise than it did before."""


@dataclass(slots=True)
class _Said:
    """A part that was received, and how much of it the present run has said again."""

    started: PartStarted
    text: bytearray = field(default_factory=bytearray)  # UTF-8
    tokens: int = 0
    ended: bool = False
    again: bool = True
    again_text: int = 0  # bytes
    again_tokens: int = 0

    @property
    def repeated(self) -> bool:
        """Whether the present run has said all of it."""
        return (self.again, self.again_text, self.again_tokens) == (True, len(self.text), self.tokens)


class Record:
    """What was received of a generation. The events of another run of the same request are checked against it, so that
    its reader gets each token once."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], _Said] = {}  # by choice and index
        self._finished: set[int] = set()
        self._echoed = False

    @property
    def text(self) -> str:
        return "".join(part.text.decode(errors="replace") for part in self._parts.values())

    def add(self, event: Event) -> None:
        match event:
            case PartDelta(choice, index, text, tokens):
                part = self._parts[choice, index]
                part.text += text.encode(errors="surrogatepass")
                part.tokens += len(tokens)
            case PartStarted(choice, index):
                self._parts[choice, index] = _Said(event)
            case PartEnded(choice, index):
                self._parts[choice, index].ended = True
            case Finished(choice):
                self._finished.add(choice)
            case PromptEcho():
                self._echoed = True

    def begin_again(self) -> None:
        """Expect everything to be said again, by another run."""
        for part in self._parts.values():
            part.again, part.again_text, part.again_tokens = False, 0, 0

    def unknown(self, event: Event) -> Event | None:
        """The event, or the rest of it, if it goes beyond what was received. Raises `DiffersError`."""
        match event:
            case PartDelta(choice, index) if (part := self._parts.get((choice, index))) is not None:
                return _rest_of(event, part)
            case PartStarted(choice, index, kind, _, name) if part := self._parts.get((choice, index)):
                _check((part.started.kind, part.started.name) == (kind, name))
                part.again = True
                return None
            case PartEnded(choice, index) if (part := self._parts.get((choice, index))) is not None:
                _check(part.repeated)
                return None if part.ended else event
            case Finished(choice):
                _check(all(part.repeated for (own, _), part in self._parts.items() if own == choice))
                return None if choice in self._finished else event
            case PromptEcho() if self._echoed:
                return None
            case Progress():
                return None
            case _:
                return event


def _rest_of(delta: PartDelta, part: _Said) -> PartDelta | None:
    data = delta.text.encode(errors="surrogatepass")
    known = data[: len(part.text) - part.again_text]
    _check(part.text.startswith(known, part.again_text))
    counted = min(len(delta.tokens), part.tokens - part.again_tokens)
    text, tokens = data[len(known) :].decode(errors="surrogatepass"), delta.tokens[counted:]
    _check(not (part.ended and (text or tokens)))
    part.again_text += len(data)
    part.again_tokens += len(delta.tokens)
    return replace(delta, text=text, tokens=tokens) if text or tokens else None


def _check(same: bool) -> None:
    if not same:
        raise DiffersError


class Mailbox:
    """The queued events of one request, for a single reader.

    `choices` is the number of `Finished` events that end a generation; 0 for other tasks. A request whose worker is
    lost may run again: from the start while nothing of it was read, or its reader holds it back; else what the next run
    says again is left out.
    """

    def __init__(
        self,
        choices: int,
        on_overflow: Callable[[], None],
        on_lost: Callable[[ErrorReport], bool] = lambda error: False,
        *,
        resumes: bool = False,
    ) -> None:
        """`on_lost` is called when the worker is lost; it returns whether the request runs again, which a generation
        that was read in part does only if it `resumes`."""
        self.complete = False
        self.held_back = False  # the reader shows nothing before the end
        self.record = Record()
        self._resumes = resumes and choices > 0
        self._choices = choices
        self._accepted = False
        self._read = False  # the reader has some of the answer
        self._again = False  # another run has begun, behind what was received
        self._events: list[Event] = []
        self._bytes = 0
        self._unfinished = set(range(choices))
        self._completed: dict[int, int] = {}  # by choice: tokens so far
        self._reader: asyncio.Future[None] | None = None
        self._merge_at = MERGE_AT
        self._on_overflow = on_overflow
        self._on_lost = on_lost

    @property
    def reached(self) -> int:
        """How far the answer has come: grows with each token and each choice that ends."""
        return sum(self._completed.values()) + self._choices - len(self._unfinished)

    def put(self, event: Event) -> None:
        """Add an event; events after the end are dropped."""
        if self._again and not self.complete:
            try:
                known = self.record.unknown(event)
            except DiffersError:
                self._on_overflow()
                self.end(DIFFERS)
                return
            if known is None:
                return
            event = known
        self._put(event)

    def _put(self, event: Event) -> None:
        if self.complete:
            return
        match event:
            case PartDelta(choice, _, text, tokens, completed):
                self._completed[choice] = completed
                self._bytes += EVENT_BYTES + len(text) + TOKEN_BYTES * len(tokens)
            case Finished(choice):
                self._unfinished.discard(choice)
                self.complete = not self._unfinished
            case Accepted():
                if self._accepted:
                    return  # of an earlier run
                self._accepted = True
            case _:
                self.complete = isinstance(event, Ending)
        self._events.append(event)
        if self._resumes:
            self.record.add(event)
        if len(self._events) >= self._merge_at:
            self._merge()
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def fail(self, error: ErrorReport) -> None:
        """End the request with an error, unless it runs again because its worker is lost."""
        starts_over = self.held_back or not self._read
        may_go_on = error.kind == LOST and not self.complete and (starts_over or self._resumes)
        if not may_go_on or not self._on_lost(error):
            self.end(error)
        elif starts_over:
            self._start_over()
        else:
            self._again = True
            self.record.begin_again()

    def end(self, error: ErrorReport) -> None:
        """End the request with an error."""
        self._put(Failed(error))

    def leave(self) -> None:
        """Nobody reads any more. Whoever did is let go of, so that no cycle is left to the collection of garbage."""
        self._on_overflow, self._on_lost = lambda: None, lambda error: False

    def _start_over(self) -> None:
        kept: list[Event] = [event for event in self._events if isinstance(event, Accepted)]
        if self._read:
            kept.append(Restarted())
        self._events, self._bytes = kept, 0
        self._unfinished = set(range(self._choices))
        self._completed.clear()
        self.record = Record()
        self._again = False

    async def first(self) -> Event:
        """Wait for the first event and return it. It stays in the mailbox unless it is `Accepted`."""
        await self._any()
        first = self._events[0]
        if isinstance(first, Accepted):
            del self._events[0]
        return first

    async def take(self) -> list[Event]:
        """All events since the last call, waiting for at least one; empty after the end."""
        await self._any()
        events, self._events = self._events, []
        self._bytes, self._merge_at = 0, MERGE_AT
        if not self._read:
            self._read = any(not isinstance(event, Accepted | Progress) for event in events)
        return events if len(events) < 2 else merged(events)

    async def _any(self) -> None:
        """Wait until there is an event, or the end."""
        if self._events or self.complete:
            return
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _merge(self) -> None:
        """Merge the queued deltas. Ends the request if its reader has let too much queue up."""
        self._events = merged(self._events)
        self._merge_at = 2 * len(self._events) + MERGE_AT
        if self._bytes > LARGEST and not self.complete:
            message = "The client reads its answer too slowly; it was cut off here."
            self.end(ErrorReport(kind="too_large", message=message))
            self._on_overflow()


ENDED_IN_A_TURN: Final = 16  # requests of a dead worker that fail in one turn of the event loop
UNSENT_BYTES: Final = 512 << 20  # orders queued for a worker that does not read


class Link(asyncio.Protocol):
    """The socket to one worker, as an asyncio protocol, and the `Requests` sent over it.

    `on_report` receives each report but the events of requests; `on_closed` is called once, with the error if the
    frames were malformed.
    """

    def __init__(
        self, model: str, on_report: Callable[[Report], None], on_closed: Callable[[Exception | None], None]
    ) -> None:
        self._model = model
        self._on_report = on_report
        self._on_closed = on_closed
        self._mailboxes: dict[str, Mailbox] = {}  # by wire id
        self._wire_ids: dict[str, str] = {}
        self._serial = 0
        self._ended: ErrorReport | None = None
        self._buffer = FrameBuffer()
        self._decode = message_decoder(Report).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._transport: asyncio.WriteTransport | None = None
        self._fault: Exception | None = None

    def send(self, message: Order | WorkerSpec) -> bool:
        """Queue a frame for the worker; drop it if the link is not open, or full. Returns whether there was room: most
        orders go without an answer, since one more does not help a worker that reads none."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return True
        if transport.get_write_buffer_size() > UNSENT_BYTES:
            return False
        payload = self._encode(message)
        transport.writelines((header(payload), payload))  # not concatenated: the payload may be large
        return True

    @property
    def ids(self) -> Collection[str]:
        """Ids of the requests that have not ended."""
        return self._wire_ids.keys()

    def submit(self, id: str, task: Task, mailbox: Mailbox) -> None:
        if self._ended is not None:
            raise ServerError.of(self._ended)
        self._serial += 1
        # The serial number keeps late events of an earlier request with this id apart.
        wire_id = f"{id}{SERIAL_MARK}{self._serial}"
        if not self.send(Submit(wire_id, task)):
            message = f"The model {self._model!r} has too many unread requests; try again later."
            raise ServerError("overloaded", message, retry_after=10.0)
        self._mailboxes[wire_id] = mailbox
        self._wire_ids[id] = wire_id

    def cancel(self, id: str) -> None:
        if (wire_id := self._wire_ids.get(id)) is not None:
            self._forget(wire_id)
            self.send(Cancel(wire_id))

    def fail_all(self, error: ErrorReport) -> None:
        waiting, self._mailboxes, self._wire_ids = self._mailboxes, {}, {}
        _fail_some(list(waiting.values()), error)
        for wire_id in waiting:
            self.send(Cancel(wire_id))

    def end(self, error: ErrorReport) -> None:
        """Close the link to a worker that is gone: all its requests fail, and those that follow are refused."""
        self.close()
        self._ended = error
        self.fail_all(error)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._buffer.feed(data):
                report = self._decode(payload)
                if isinstance(report, Output):
                    self._deliver(report.events)
                else:
                    self._on_report(report)
        except (FrameError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._fault = error
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._on_closed(self._fault)

    def _deliver(self, events: list[tuple[str, Event]]) -> None:
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

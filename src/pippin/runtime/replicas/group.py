"""Spreads requests over replicas: places them by prefix, and again if a replica is lost before it has said anything.

The replica that computes a request delivers its events straight into one mailbox, so replicas add no hop to a token.
"""

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec

from pippin.core.errors import ErrorKind, ErrorReport, ServerError
from pippin.core.events import Accepted, Event, Progress, Restarted
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate, Task
from pippin.runtime.workers.link import Mailbox

log = logging.getLogger(__name__)


BLOCK: Final = 256  # bytes of text
MOST_BLOCKS: Final = 4096  # in one prompt: text beyond 1 MiB does not affect the choice
REMEMBERED: Final = 1 << 15  # blocks per replica: 8 MiB of text, about 100 bytes of memory each
MUCH_BUSIER: Final = 2  # times as many requests as the idlest
AT_LEAST_BUSIER: Final = 4  # more requests; below that, queueing costs less than recomputing a prompt

Prefix = tuple[bytes, ...]
"""Hashes of the blocks of a prompt, each covering all before it."""


def prefix_of(task: Task) -> Prefix:
    """The block hashes of a task's prompt; none for a task without a prompt, or with one shorter than a block.

    The API process has no tokenizer, so a prompt is cut into blocks of text rather than tokens. Otherwise this works
    like the prefix tree: a block's hash covers everything before it, so equal hashes mean equal prefixes.
    """
    if not isinstance(task, Generate):
        return ()
    encoded = _encoded(task.request)
    digest = hashlib.blake2b(digest_size=16)
    hashes = []
    for start in range(0, min(len(encoded) - BLOCK + 1, BLOCK * MOST_BLOCKS), BLOCK):
        digest.update(encoded[start : start + BLOCK])
        hashes.append(digest.copy().digest())
    return tuple(hashes)


def _encoded(request: GenerationRequest) -> bytes:
    """The parts of the prompt, in the order in which templates write them. Messages are concatenated without a count in
    front, which would give each turn of a conversation a different prefix."""
    opening = (request.adapter, request.cache_salt, request.tools, request.template_kwargs, request.prompt)
    return b"".join(map(msgspec.msgpack.encode, (*opening, *(request.messages or ()))))


class Replica(Protocol):
    """What routing needs from a replica. Compared and hashed by identity."""

    @property
    def running(self) -> int:
        """Requests assigned to it that have not ended."""
        ...


R = TypeVar("R", bound=Replica)


@dataclass
class Seen:
    """The blocks sent to one replica; only the most recently used are remembered."""

    limit: int = REMEMBERED
    _blocks: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    def matched(self, prefix: Prefix) -> int:
        """Number of leading blocks of a prompt that the replica has seen."""
        for count, block in enumerate(prefix):
            if block not in self._blocks:
                return count
        return len(prefix)

    def add(self, prefix: Prefix) -> None:
        # Last block first, so that the end of a prompt is evicted before its beginning.
        for block in reversed(prefix):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self.limit:
            self._blocks.popitem(last=False)

    def __len__(self) -> int:
        return len(self._blocks)


def choose(prefix: Prefix, replicas: Sequence[tuple[R, Seen]]) -> R | None:
    """The replica for a prompt; None if there are none.

    Ties in the length of the seen prefix go to the least busy replica, then to the one that was sent the least so far.
    """
    if not replicas:
        return None

    def business(place: tuple[R, Seen]) -> tuple[int, int]:
        return place[0].running, len(place[1])

    idlest = min(replicas, key=business)
    best = min(replicas, key=lambda place: (-place[1].matched(prefix), *business(place)))
    return idlest[0] if _much_busier(best[0].running, idlest[0].running) else best[0]


def _much_busier(one: int, other: int) -> bool:
    return one >= other * MUCH_BUSIER and one >= other + AT_LEAST_BUSIER


LOST: Final[ErrorKind] = "worker_died"
MOST_LOSSES: Final = 2  # per request: a request that kills its workers must not kill them all
RETRY_AFTER: Final = 2.0  # seconds, if no replica is available


class Place(Protocol):
    """A replica that takes requests. If it is lost, its requests fail with an error of kind `LOST`."""

    def submit(self, id: str, task: Task, choices: int, mailbox: Mailbox) -> object: ...

    def cancel(self, id: str) -> None: ...


class RescuedMailbox(Mailbox):
    """A mailbox whose request can start over while none of its answer was taken, or while the reader holds it back."""

    def __init__(
        self, choices: int, on_overflow: Callable[[], None], on_lost: Callable[[ErrorReport], bool]
    ) -> None:
        """`on_lost` is called when the replica is lost; it returns whether another one has taken over."""
        super().__init__(choices, on_overflow)
        self._choices = choices
        self._on_lost = on_lost
        self._accepted = False
        self._said = False

    def put(self, event: Event) -> None:
        if isinstance(event, Accepted):
            if self._accepted:
                return  # by an earlier replica, and already reported to the reader
            self._accepted = True
        super().put(event)

    def fail(self, error: ErrorReport) -> None:
        """End the request with an error, unless it can start over elsewhere."""
        if error.kind == LOST and (self.held_back or not self._said) and not self.complete:
            kept: list[Event] = [event for event in self._events if isinstance(event, Accepted)]
            if self._said:
                kept.append(Restarted())
            self._events, self._bytes = kept, 0
            self._unfinished = set(range(self._choices))
            self._open_parts.clear()
            self._completed.clear()
            if not self._on_lost(error):
                self.give_up(error)
            return
        super().fail(error)

    def give_up(self, error: ErrorReport) -> None:
        """End a lost request with the error of its loss, because it does not start over."""
        if error.retry_after is not None:  # no process died: there was no room
            error = msgspec.structs.replace(error, kind="overloaded")
        super().fail(error)

    def _emptied(self) -> list[Event]:
        events = super()._emptied()
        if not self._said:
            self._said = any(not isinstance(event, Accepted | Progress) for event in events)
        return events


@dataclass(eq=False)
class Seat:
    """A replica, the prompts it has seen, and the number of its requests."""

    place: Place
    seen: Seen = field(default_factory=Seen)
    running: int = 0


@dataclass(eq=False)
class Placement:
    """The seat of one request, and the seats it has tried."""

    prefix: Prefix
    seat: Seat | None = None
    tried: set[Seat] = field(default_factory=set)
    losses: int = 0

    def take(self, seat: Seat) -> None:
        self.seat = seat
        self.tried.add(seat)
        seat.running += 1
        seat.seen.add(self.prefix)

    def leave(self) -> Seat | None:
        """Take the request off its seat, if it has one."""
        seat, self.seat = self.seat, None
        if seat is not None:
            seat.running -= 1
        return seat

    def lost(self) -> bool:
        """Take the request off a lost seat; returns whether it may start over."""
        if self.leave() is None:
            return False
        self.losses += 1
        return self.losses < MOST_LOSSES


@dataclass(eq=False)
class _Request:
    task: Task
    choices: int
    mailbox: RescuedMailbox
    placement: Placement


class Spread:
    """Places requests on available seats."""

    def __init__(self, model: str, seats: Callable[[], list[Seat]]) -> None:
        """`seats` returns the seats that take requests now."""
        self._model = model
        self._seats = seats
        self._requests: dict[str, _Request] = {}

    @property
    def active(self) -> list[str]:
        """Ids of the requests that have not been cancelled yet."""
        return list(self._requests)

    def submit(self, id: str, task: Task, choices: int) -> Mailbox:
        """Place a request on the best seat. Raises `ServerError` if none takes it."""
        mailbox = RescuedMailbox(choices, partial(self.cancel, id), partial(self._lost, id))
        request = _Request(task, choices, mailbox, Placement(prefix_of(task)))
        self._requests[id] = request
        try:
            self._place(id, request)
        except BaseException:
            self.cancel(id)
            raise
        return mailbox

    def cancel(self, id: str) -> None:
        """Drop a request, which may have ended; its mailbox gets nothing more."""
        request = self._requests.pop(id, None)
        if request is not None and (seat := request.placement.leave()) is not None:
            seat.place.cancel(id)

    def fail_all(self, error: ErrorReport) -> None:
        """End every request with this error, whatever its kind."""
        for own, request in list(self._requests.items()):
            self.cancel(own)
            Mailbox.fail(request.mailbox, error)

    def _place(self, id: str, request: _Request) -> None:
        """Send a request to the best seat that it has not tried. Raises `ServerError` if there is none."""
        placement = request.placement
        open_seats = [(seat, seat.seen) for seat in self._seats() if seat not in placement.tried]
        seat = choose(placement.prefix, open_seats)
        if seat is None:
            message = f"No server of the model {self._model!r} can take the request now; try again later."
            raise ServerError("overloaded", message, retry_after=RETRY_AFTER)
        placement.take(seat)
        seat.place.submit(id, request.task, request.choices, request.mailbox)

    def _lost(self, id: str, error: ErrorReport) -> bool:
        """Start a request over elsewhere; False if its tries are used up or nobody takes it."""
        request = self._requests.get(id)
        if request is None or not request.placement.lost():
            return False
        try:
            self._place(id, request)
        except ServerError:
            return False
        log.info("Request %s is begun again elsewhere: %s", id, error.message)
        return True

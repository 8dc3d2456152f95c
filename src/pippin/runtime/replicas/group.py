"""Requests spread over replicas: placed by prefix, and again where a replica is lost before it has said anything.

The events of a request come straight from whichever replica computes it into one mailbox: there is no hop for a token.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import msgspec

from pippin.core.errors import ErrorKind, ErrorReport, ServerError
from pippin.core.events import Accepted, Event, Progress, Restarted
from pippin.core.tasks import Task
from pippin.runtime.replicas.routing import Prefix, Seen, choose, prefix_of
from pippin.runtime.workers.link import Mailbox

log = logging.getLogger(__name__)

LOST: Final[ErrorKind] = "worker_died"
MOST_LOSSES: Final = 2  # of one request: one that kills its workers must not kill them all
RETRY_AFTER: Final = 2.0  # seconds, where no replica is there


class Place(Protocol):
    """A replica that takes requests. A request whose replica is lost is failed with an error of kind `LOST`."""

    def submit(self, id: str, task: Task, choices: int, mailbox: Mailbox) -> object: ...

    def cancel(self, id: str) -> None: ...


class RescuedMailbox(Mailbox):
    """A mailbox whose request can be begun again, as long as nothing of its answer was taken out, or is held back."""

    def __init__(
        self, choices: int, on_overflow: Callable[[], None], on_lost: Callable[[ErrorReport], bool]
    ) -> None:
        """`on_lost` is told of the loss of whoever fills the mailbox, and says whether someone else does now."""
        super().__init__(choices, on_overflow)
        self._choices = choices
        self._on_lost = on_lost
        self._accepted = False
        self._said = False

    def put(self, event: Event) -> None:
        if isinstance(event, Accepted):
            if self._accepted:
                return  # by the first replica, which the reader has been told
            self._accepted = True
        super().put(event)

    def fail(self, error: ErrorReport) -> None:
        """End the request with an error, unless it can be begun again elsewhere."""
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
        """End a lost request with the error by which it was lost: nobody begins it again."""
        if error.retry_after is not None:  # nobody died: nobody had room
            error = msgspec.structs.replace(error, kind="overloaded")
        super().fail(error)

    def _emptied(self) -> list[Event]:
        events = super()._emptied()
        if not self._said:
            self._said = any(not isinstance(event, Accepted | Progress) for event in events)
        return events


@dataclass(eq=False)
class Seat:
    """A replica, what it has seen, and the requests that it has."""

    place: Place
    seen: Seen = field(default_factory=Seen)
    running: int = 0


@dataclass(eq=False)
class Placement:
    """Where one request is, and where it was."""

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
        """Take it off a seat that is lost; whether it may be begun again."""
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
    """Places requests on the seats that take some."""

    def __init__(self, model: str, seats: Callable[[], list[Seat]]) -> None:
        """`seats` gives those that take requests now."""
        self._model = model
        self._seats = seats
        self._requests: dict[str, _Request] = {}

    @property
    def active(self) -> list[str]:
        """Ids of the requests that were not taken back yet."""
        return list(self._requests)

    def submit(self, id: str, task: Task, choices: int) -> Mailbox:
        """Begin a request on the best seat. Raises `ServerError` where none takes it."""
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
        """Forget a request, which may have ended; its mailbox gets nothing more."""
        request = self._requests.pop(id, None)
        if request is not None and (seat := request.placement.leave()) is not None:
            seat.place.cancel(id)

    def fail_all(self, error: ErrorReport) -> None:
        """End every request with this error, whatever its kind."""
        for own, request in list(self._requests.items()):
            self.cancel(own)
            Mailbox.fail(request.mailbox, error)

    def seat(self, placement: Placement) -> Seat:
        """Give a request the best seat that it has not tried, which counts as its own until `leave`.

        Raises `ServerError` where there is none.
        """
        open_seats = [(seat, seat.seen) for seat in self._seats() if seat not in placement.tried]
        seat = choose(placement.prefix, open_seats)
        if seat is None:
            message = f"No server of the model {self._model!r} can take the request now; try again later."
            raise ServerError("overloaded", message, retry_after=RETRY_AFTER)
        placement.take(seat)
        return seat

    def _place(self, id: str, request: _Request) -> None:
        seat = self.seat(request.placement)
        seat.place.submit(id, request.task, request.choices, request.mailbox)

    def _lost(self, id: str, error: ErrorReport) -> bool:
        """Begin a request again elsewhere; False where it has had its tries, or nobody takes it."""
        request = self._requests.get(id)
        if request is None or not request.placement.lost():
            return False
        try:
            self._place(id, request)
        except ServerError:
            return False
        log.info("Request %s is begun again elsewhere: %s", id, error.message)
        return True

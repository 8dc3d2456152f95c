"""Spreads requests over replicas: places them by prefix.

The replica that computes a request delivers its events straight into one mailbox, so replicas add no hop to a token.
Whoever sent a request that is lost with its replica sends it again, and it is placed anew.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec

from pippin.core.errors import ErrorReport, ServerError
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate, Task
from pippin.runtime.workers.link import LOST, Mailbox

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


class Place(Protocol):
    """A replica that takes requests. If it is lost, its requests fail with an error of kind `LOST`."""

    def submit(self, id: str, task: Task, choices: int, mailbox: Mailbox) -> object: ...

    def cancel(self, id: str) -> None: ...


@dataclass(eq=False)
class Seat:
    """A replica, the prompts it has seen, and the number of its requests."""

    place: Place
    seen: Seen = field(default_factory=Seen)
    running: int = 0


class Spread:
    """Places requests on available seats."""

    def __init__(self, model: str, seats: Callable[[], list[Seat]]) -> None:
        """`seats` returns the seats that take requests now."""
        self._model = model
        self._seats = seats
        self._requests: dict[str, tuple[Seat, Mailbox]] = {}

    @property
    def active(self) -> list[str]:
        """Ids of the requests that have not been cancelled yet."""
        return list(self._requests)

    def submit(self, id: str, task: Task, choices: int, mailbox: Mailbox) -> Mailbox:
        """Place a request on the best seat. Raises `ServerError`, of kind `LOST` if there is none."""
        prefix = prefix_of(task)
        seat = choose(prefix, [(each, each.seen) for each in self._seats()])
        if seat is None:
            raise ServerError(LOST, f"All servers of the model {self._model!r} are lost; try again later.")
        self._requests[id] = seat, mailbox
        seat.running += 1
        seat.seen.add(prefix)
        try:
            seat.place.submit(id, task, choices, mailbox)
        except BaseException:
            self.cancel(id)
            raise
        return mailbox

    def cancel(self, id: str) -> None:
        """Drop a request, which may have ended; its mailbox gets nothing more."""
        if (found := self._requests.pop(id, None)) is not None:
            seat, _ = found
            seat.running -= 1
            seat.place.cancel(id)

    def fail_all(self, error: ErrorReport) -> None:
        """End every request with this error."""
        for own, (_, mailbox) in list(self._requests.items()):
            self.cancel(own)
            mailbox.fail(error)

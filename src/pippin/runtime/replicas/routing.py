"""Which replica a request goes to: the one that has computed most of its prompt, unless it is much busier than another.

The API process has no tokenizer, so a prompt is cut into blocks of text, not of tokens; otherwise this is the prefix
tree's idea: the hash of a block covers all that stands before it, so that equal hashes mean equal prefixes.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec

from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate, Task

BLOCK: Final = 256  # bytes of text
MOST_BLOCKS: Final = 4096  # of one prompt: what comes later than 1 MiB does not choose a replica
REMEMBERED: Final = 1 << 15  # blocks of one replica: 8 MiB of text, about 100 bytes of memory each
MUCH_BUSIER: Final = 2  # times as many requests
AT_LEAST_BUSIER: Final = 4  # requests more; below that a queue costs less than a prompt

Prefix = tuple[bytes, ...]
"""Hashes of the blocks of a prompt, each covering all before it."""


def prefix_of(task: Task) -> Prefix:
    """The blocks of a task's prompt; none for a task without one, or one that is shorter than a block."""
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
    """What the prompt is made of, in the order in which templates write it. Messages stand one after another, with no
    count before them: it would make another prompt of a conversation with each turn."""
    opening = (request.adapter, request.cache_salt, request.tools, request.template_kwargs, request.prompt)
    return b"".join(map(msgspec.msgpack.encode, (*opening, *(request.messages or ()))))


class Replica(Protocol):
    """What routing needs to know of a replica. Compared and hashed by identity."""

    @property
    def running(self) -> int:
        """Requests that it has been given and that have not ended."""
        ...


R = TypeVar("R", bound=Replica)


@dataclass
class Seen:
    """The blocks that one replica has been sent, as far as they are remembered: the most recently used."""

    limit: int = REMEMBERED
    _blocks: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    def matched(self, prefix: Prefix) -> int:
        """How many blocks of a prompt the replica has seen from its beginning on."""
        for count, block in enumerate(prefix):
            if block not in self._blocks:
                return count
        return len(prefix)

    def add(self, prefix: Prefix) -> None:
        # Last block first, so that the end of a prompt is forgotten before its beginning.
        for block in reversed(prefix):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self.limit:
            self._blocks.popitem(last=False)

    def __len__(self) -> int:
        return len(self._blocks)


def choose(prefix: Prefix, replicas: Sequence[tuple[R, Seen]]) -> R | None:
    """The replica for a prompt; None where there are none.

    Of those that have seen equally much of it the least busy one is taken, and of those the one that was sent the
    least so far.
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

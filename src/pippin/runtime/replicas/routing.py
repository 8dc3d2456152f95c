"""Chooses the replica that takes a request: by the beginning of its prompt."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from pippin.core.models import WorkerSpec
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate, Task
from pippin.runtime.workers.worker import Worker

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


@dataclass(eq=False)
class Seat:
    """One process of a replica, the prompts that it has seen, and the number of its requests that have not ended."""

    spec: WorkerSpec  # starts the next one
    worker: Worker
    seen: Seen = field(default_factory=Seen)
    running: int = 0

    @property
    def is_here(self) -> bool:
        return self.spec.machine is None

    @property
    def prepared(self) -> bool:
        return not self.worker.died.done() and succeeded(self.worker.prompt_ready)

    @property
    def loaded(self) -> bool:
        return self.prepared and succeeded(self.worker.weights_ready)


def succeeded(stage: "asyncio.Future[None]") -> bool:
    return stage.done() and not stage.cancelled() and stage.exception() is None


def choose(prefix: Prefix, seats: Sequence[Seat]) -> Seat | None:
    """The replica for a prompt; None if there are none.

    Ties in the length of the seen prefix go to the least busy replica, then to the one that was sent the least so far.
    """
    if not seats:
        return None

    def business(seat: Seat) -> tuple[int, int]:
        return seat.running, len(seat.seen)

    idlest = min(seats, key=business)
    best = min(seats, key=lambda seat: (-seat.seen.matched(prefix), *business(seat)))
    much_busier = (
        best.running >= idlest.running * MUCH_BUSIER and best.running >= idlest.running + AT_LEAST_BUSIER
    )
    return idlest if much_busier else best

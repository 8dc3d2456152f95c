"""Keeps large work off the event loop: what counts as large, and one worker thread at a time for it."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, TypeVarTuple

from msgspec import Struct

from pippin.core.events import Event, PartDelta

LARGE: Final = 64 << 10  # bytes; reading or drawing so many takes some milliseconds at worst
TOKEN_BYTES: Final = 200  # of a token with its log probability, once it is drawn
ITEM_BYTES: Final = 50  # of an item of a list, beside its own text

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class LargeWork:
    """Runs large work on a thread, one piece after the other.

    Two pieces at once would be no faster, and the event loop would wait for the interpreter's lock behind both.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def do(self, size: int, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """The result of `work`, done on the calling thread where `size` (bytes) is at most `LARGE`."""
        if size <= LARGE:
            return work(*arguments)
        async with self._turn:
            return await asyncio.to_thread(work, *arguments)


def drawn_bytes(events: Iterable[Event]) -> int:
    """About how many bytes it takes to draw these events."""
    size = 0
    for event in events:
        if isinstance(event, PartDelta):
            size += len(event.text) + TOKEN_BYTES * len(event.tokens)
        else:
            size += _bytes_of(event)
    return size


def _bytes_of(value: Any) -> int:
    match value:
        case str() | bytes():
            return len(value)
        case tuple():
            return sum(ITEM_BYTES + _bytes_of(item) for item in value)
        case Struct():
            return sum(_bytes_of(getattr(value, name)) for name in value.__struct_fields__)
        case _:
            return 0

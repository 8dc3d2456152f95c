"""The events of one request on their way from a worker to whoever answers the client.

A slow reader finds what came meanwhile joined: deltas of the same part become one. The event loop is woken once
for each engine step, not for each event.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from pippin.core.errors import ErrorReport
from pippin.core.events import TERMINAL, Event, Failed, Finished, PartDelta, Picture, SpeechChunk, append_merged

LARGEST: Final = 64 << 20  # bytes that may wait for one reader
TOKEN_BYTES: Final = 100  # about what a token with its alternatives takes


class Mailbox:
    """Single reader. `choices` is how many `Finished` a generation ends with."""

    def __init__(self, choices: int = 1, on_overflow: Callable[[], None] | None = None) -> None:
        self._events: list[Event] = []
        self._bytes = 0
        self._unfinished = choices
        self._reader: asyncio.Future[None] | None = None
        self._on_overflow = on_overflow
        self.complete = False

    def put(self, event: Event) -> None:
        """Add an event; what comes after the end is dropped."""
        if self.complete:
            return
        append_merged(self._events, event)
        match event:
            case PartDelta(_, _, text, tokens):
                self._bytes += len(text) + TOKEN_BYTES * len(tokens)
            case Finished():
                self._unfinished -= 1
                self.complete = self._unfinished == 0
            case SpeechChunk(data) | Picture(_, data):
                self._bytes += len(data)
            case _:
                self.complete = isinstance(event, TERMINAL)
        if self._bytes > LARGEST and not self.complete:
            self._overflow()
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def fail(self, error: ErrorReport) -> None:
        self.put(Failed(error))

    async def take(self) -> list[Event]:
        """What has come since the last call, waiting for it; empty after the end."""
        if not self._events and not self.complete:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        events = self._events
        self._events = []
        self._bytes = 0
        return events

    def _overflow(self) -> None:
        self.fail(
            ErrorReport(kind="too_large", message="The client reads its answer too slowly; it was cut off here.")
        )
        if self._on_overflow is not None:
            self._on_overflow()

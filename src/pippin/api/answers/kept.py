"""Answers that go on without their client, who can take up their events again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final, TypeVar

from pippin.api.answers.answer import Answer
from pippin.api.dialects.shared.frames import COMMENT
from pippin.core.errors import ErrorReport

FINISHED_KEPT: Final = 64
"""Finished answers of one owner whose events can still be followed."""
FINISHED_BYTES: Final = 8 << 20  # of their events

CANCELLED: Final = ErrorReport(kind="cancelled", message="The response was cancelled.")


class KeptAnswer:
    """A streamed answer that goes on without its client, and its events so far, by their numbers from 0."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._events: list[bytes] = []
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self.run(), name=f"kept answer {answer.id}")

    @property
    def finished(self) -> bool:
        return self._task.done()

    @property
    def size(self) -> int:
        """Bytes of the events so far."""
        return sum(map(len, self._events))

    async def begun(self, within: float) -> None:
        """Wait for the first event, for at most so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not self._events and not self.finished:
                    await self._changed.wait()

    async def follow(self, after: int, silence: float) -> AsyncIterator[bytes]:
        """The events after a number, as they come, to the end, and a comment after `silence` seconds without one."""
        place = after + 1
        while True:
            changed = self._changed
            if place < len(self._events):
                yield b"".join(self._events[place:])
                place = len(self._events)
            elif self.finished:
                return
            else:
                try:
                    async with asyncio.timeout(silence):
                        await changed.wait()
                except TimeoutError:
                    yield COMMENT

    async def cancel(self) -> None:
        """Cancel the answer; returns when it has stopped. One that has ended stays as it is."""
        if not self.finished:
            self._answer.end(CANCELLED)
            await asyncio.wait({self._task})

    async def run(self) -> None:
        try:
            async for piece in self._answer.pieces():
                self.add(piece)
        finally:
            await self._answer.close()
            self.wake()

    def add(self, frames: bytes) -> None:
        """Keep the events of these frames, without comments."""
        events = [event + b"\n\n" for event in frames.split(b"\n\n") if event]
        self._events += [event for event in events if not event.startswith(b":")]
        self.wake()

    def wake(self) -> None:
        """Let those that follow look anew."""
        self._changed.set()
        self._changed = asyncio.Event()


Kept = TypeVar("Kept", bound=KeptAnswer)


class KeptAnswers(dict[tuple[str, str], Kept]):
    """The kept answers that run, and the last ones that ended, by owner and id."""

    def keep(self, owner: str, id: str, answer: Kept) -> None:
        self[owner, id] = answer
        finished = [key for key, one in self.items() if key[0] == owner and one.finished]
        size = sum(self[key].size for key in finished)
        while len(finished) > FINISHED_KEPT or size > FINISHED_BYTES:
            size -= self.pop(finished.pop(0)).size

"""Runs responses in the background: they continue without the client, and are polled, followed and cancelled by id."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Final

from pippin.api.answers.answer import Answer
from pippin.api.dialects.responses.answer import ResponseAnswer
from pippin.api.dialects.responses.encode import ResponsesEncoder
from pippin.api.dialects.shared.frames import COMMENT, DONE
from pippin.core.errors import SHUTTING_DOWN, ErrorReport

FINISHED_KEPT: Final = 64
"""Finished responses of one owner whose events can still be followed; of older ones only the stored response exists."""
FINISHED_BYTES: Final = 8 << 20  # of their events

CANCELLED: Final = ErrorReport(kind="cancelled", message="The response was cancelled.")
TERMINAL: Final = ("completed", "incomplete", "failed", "cancelled")


class BackgroundResponse:
    """A response that runs without its client, and its events so far, by their sequence numbers."""

    def __init__(
        self,
        answer: Answer,
        encoder: ResponsesEncoder,
        saved: Callable[[ResponseAnswer], None],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`encoder`: that of the answer. `saved` is called on a thread with the response object, before the run begins
        and when it has ended; so is `ended`, unless the server stops and the next one is to begin it again."""
        self._answer = answer
        self._encoder = encoder
        self._saved = saved
        self._ended = ended
        self._cancelled = False
        self._events: list[bytes] = []
        self._changed = asyncio.Event()
        self._add(encoder.queued())
        self._task = asyncio.create_task(self._run(), name="background response")

    @property
    def response(self) -> ResponseAnswer:
        return self._encoder.response()

    @property
    def size(self) -> int:
        """Bytes of the events so far."""
        return sum(map(len, self._events))

    @property
    def finished(self) -> bool:
        return self._task.done()

    async def follow(self, after: int, silence: float) -> AsyncIterator[bytes]:
        """The events after a sequence number, as they come, to the end."""
        place = after + 1
        while True:
            changed = self._changed
            if place < len(self._events):
                yield b"".join(self._events[place:])
                place = len(self._events)
            elif self.finished:
                yield DONE
                return
            else:
                try:
                    await asyncio.wait_for(changed.wait(), silence)
                except TimeoutError:
                    yield COMMENT

    async def cancel(self) -> None:
        """Cancel the response; returns when it has stopped. A response that has ended stays as it is."""
        if not self.finished:
            self._cancelled = True
            self._answer.end(CANCELLED)
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            await asyncio.to_thread(self._saved, self.response)
            async for piece in self._answer.pieces():
                if piece != COMMENT:
                    self._add(piece)
            if self._cancelled:
                self._encoder.cancelled()
        finally:
            await self._answer.close()
            await asyncio.to_thread(self._saved, self.response)
            if self._answer.failure != SHUTTING_DOWN:
                await asyncio.to_thread(self._ended)
            self._wake()

    def _add(self, frames: bytes) -> None:
        events = [event + b"\n\n" for event in frames.split(b"\n\n") if event]
        self._events += [event for event in events if event != DONE]
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class BackgroundResponses:
    """The background responses that run, and the last ones that ended, by owner and id."""

    def __init__(self) -> None:
        self._responses: OrderedDict[tuple[str, str], BackgroundResponse] = OrderedDict()

    def add(self, owner: str, id: str, response: BackgroundResponse) -> None:
        self._responses[owner, id] = response
        finished = [key for key, one in self._responses.items() if key[0] == owner and one.finished]
        size = sum(self._responses[key].size for key in finished)
        while len(finished) > FINISHED_KEPT or size > FINISHED_BYTES:
            size -= self._responses.pop(finished.pop(0)).size

    def find(self, owner: str, id: str) -> BackgroundResponse | None:
        return self._responses.get((owner, id))

    def remove(self, owner: str, id: str) -> None:
        self._responses.pop((owner, id), None)

    async def close(self) -> None:
        """Cancel what still runs."""
        await asyncio.gather(*(response.cancel() for response in self._responses.values()))

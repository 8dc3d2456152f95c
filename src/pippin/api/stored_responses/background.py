"""Runs responses in the background: they continue without the client, and are polled, followed and cancelled by id."""

import asyncio
from collections.abc import Callable
from typing import Final

from pippin.api.answers.answer import Answer
from pippin.api.answers.kept import KeptAnswer
from pippin.api.dialects.responses.answer import ResponseAnswer, ResponsesEncoder
from pippin.core.errors import SHUTTING_DOWN

TERMINAL: Final = ("completed", "incomplete", "failed", "cancelled")


class BackgroundResponse(KeptAnswer):
    """A response that runs without its client."""

    def __init__(
        self,
        answer: Answer,
        encoder: ResponsesEncoder,
        saved: Callable[[ResponseAnswer], None],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`encoder`: that of the answer. `saved` is called on a thread with the response object, before the run begins
        and when it has ended; so is `ended`, unless the server stops and the next one is to begin it again."""
        super().__init__(answer)
        self._encoder = encoder
        self._saved = saved
        self._ended = ended
        self._cancelled = False
        self.add(encoder.queued())

    @property
    def response(self) -> ResponseAnswer:
        return self._encoder.response()

    async def cancel(self) -> None:
        """Cancel the response; returns when it has stopped. A response that has ended stays as it is."""
        self._cancelled = not self.finished
        await super().cancel()

    async def run(self) -> None:
        try:
            await asyncio.to_thread(self._saved, self.response)
            await super().run()
            if self._cancelled:
                self._encoder.cancelled()
        finally:
            await asyncio.to_thread(self._saved, self.response)
            if self._answer.failure != SHUTTING_DOWN:
                await asyncio.to_thread(self._ended)
            self.wake()

"""Saves each response that is to be stored, before the client is told that it is complete.

One in the background runs on without its client: it is polled, followed and cancelled by id.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from pippin.api.answers.answer import Answer
from pippin.api.answers.kept import CANCELLED, KeptAnswer
from pippin.api.dialects.base import RunInfo
from pippin.api.dialects.responses.answer import (
    ResponseAnswer,
    ResponsesEncoder,
    ResponseShape,
    Status,
    stored_items,
)
from pippin.api.dialects.responses.dialect import ResponsesDialect
from pippin.api.stored_responses.response_store import OwnedHistory, StoredResponse
from pippin.core.errors import SHUTTING_DOWN

TERMINAL: Final = ("completed", "incomplete", "failed", "cancelled")


class SavingDialect(ResponsesDialect):
    """The Responses dialect of one caller, whose responses go into that caller's history."""

    def __init__(self, history: OwnedHistory, *, keep_all: bool = False) -> None:
        """`keep_all`: the history also keeps responses that are not to be stored."""
        super().__init__()
        self._history = history
        self._keep_all = keep_all

    def encoder(self, shape: ResponseShape, run: RunInfo) -> ResponsesEncoder:
        if not (self._keep_all or shape.draft.store or shape.conversation is not None):
            return super().encoder(shape, run)
        return SavingEncoder(shape, run, self._history, keep_all=self._keep_all)


class SavingEncoder(ResponsesEncoder):
    """Encodes a response, and stores it when it has ended."""

    def __init__(self, shape: ResponseShape, run: RunInfo, history: OwnedHistory, *, keep_all: bool) -> None:
        super().__init__(shape, run)
        self._history = history
        self._keep_all = keep_all
        self._given = stored_items(shape.input, run.id, history.item)
        self._before = None if shape.conversation is None else history.conversation(shape.conversation)
        self._saved: Status | None = None  # how it had ended when it was stored

    async def save(self) -> None:
        """Store the response if it has ended since the last call.

        This is done on a thread, because the input may be large and the disk slow.
        """
        status = self._answer.status
        if status in TERMINAL and status != self._saved:
            self._saved = status
            await asyncio.to_thread(self.keep)

    def keep(self) -> None:
        """Store the response as it is now, and add its turn to the conversation that it joined."""
        answer, given, conversation = self.response(), self._given, self._shape.conversation
        response: dict[str, Any] = msgspec.to_builtins(answer)
        if answer.store or self._keep_all:
            previous = answer.previous_response_id
            turn = StoredResponse(response=response, input=given, previous=previous, before=self._before)
            self._history.keep(response["id"], turn)
        if conversation is not None and response["status"] in ("completed", "incomplete"):
            self._history.add_to_conversation(conversation, [*given, *response["output"]])


class BackgroundResponse(KeptAnswer):
    """A response that runs without its client."""

    def __init__(self, answer: Answer, encoder: SavingEncoder, ended: Callable[[], None]) -> None:
        """`encoder`: that of the answer. The response is stored before the run begins and when it has ended; `ended` is
        called then on a thread, unless the server stops and the next one is to begin it again."""
        super().__init__(answer)
        self._encoder = encoder
        self._ended = ended
        self.add(encoder.queued())

    @property
    def response(self) -> ResponseAnswer:
        return self._encoder.response()

    async def run(self) -> None:
        try:
            await asyncio.to_thread(self._encoder.keep)
            await super().run()
            if self._answer.failure is CANCELLED:
                self._encoder.cancelled()
        finally:
            await asyncio.to_thread(self._encoder.keep)
            if self._answer.failure != SHUTTING_DOWN:
                await asyncio.to_thread(self._ended)
            self.wake()

"""Saves each response that is to be stored, before the client is told that it is complete."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pippin.api.dialects.base import RunInfo
from pippin.api.dialects.responses.answer import ResponseAnswer, ResponsesEncoder, ResponseShape, stored_items
from pippin.api.dialects.responses.dialect import ResponsesDialect
from pippin.api.stored_responses.response_store import OwnedHistory, StoredResponse
from pippin.core.completion import Completion
from pippin.core.errors import ErrorReport
from pippin.core.events import Event, Finished

Save = Callable[[ResponseAnswer], None]


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
        return SavingEncoder(
            shape, run, self._clock, saver(self._history, shape, run, keep_all=self._keep_all)
        )


class SavingEncoder(ResponsesEncoder):
    """Encodes a response, and tracks whether it has ended without being stored yet."""

    def __init__(self, shape: ResponseShape, run: RunInfo, clock: Callable[[], float], save: Save) -> None:
        super().__init__(shape, run, clock)
        self.keep = save
        self._unsaved = False

    def event(self, event: Event, request: int = 0) -> bytes:
        frames = super().event(event, request)
        if isinstance(event, Finished) and event.choice == 0:
            self._unsaved = True
        return frames

    def failed(self, report: ErrorReport) -> bytes:
        self._unsaved = True
        return super().failed(report)

    def whole(self, completions: Sequence[Completion]) -> bytes:
        self._unsaved = True
        return super().whole(completions)

    async def save(self) -> None:
        """Store the response if it has ended since the last call.

        This is done on a thread, because the input may be large and the disk slow.
        """
        if self._unsaved:
            self._unsaved = False
            await asyncio.to_thread(lambda: self.keep(self.response()))


def saver(history: OwnedHistory, shape: ResponseShape, run: RunInfo, *, keep_all: bool = False) -> Save:
    """A function that stores the response of a run, and adds its turn to the conversation that it joined."""
    given = stored_items(shape.input, run.id, history.item)
    before = None if shape.conversation is None else history.conversation(shape.conversation)

    def save(answer: ResponseAnswer) -> None:
        response: dict[str, Any] = msgspec.to_builtins(answer)
        if answer.store or keep_all:
            previous = answer.previous_response_id
            turn = StoredResponse(response=response, input=given, previous=previous, before=before)
            history.keep(response["id"], turn)
        if shape.conversation is not None and response["status"] in ("completed", "incomplete"):
            history.add_to_conversation(shape.conversation, [*given, *response["output"]])

    return save

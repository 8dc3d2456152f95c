"""Saves each response that is to be stored, before the client is told that it is complete."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from pippin.api.dialects.base import DecodeContext, Decoded, Encoder, RunInfo
from pippin.api.dialects.responses.answer import ResponseAnswer, stored_items
from pippin.api.dialects.responses.body import ResponsesBody
from pippin.api.dialects.responses.dialect import ResponsesDialect
from pippin.api.dialects.responses.encode import ResponsesEncoder, ResponseShape
from pippin.api.dialects.shared.fields import Contract
from pippin.api.stored_responses.response_store import OwnedHistory, StoredResponse
from pippin.core.completion import Completion
from pippin.core.errors import ErrorReport
from pippin.core.events import Accepted, Event, Finished

Save = Callable[[ResponseAnswer], None]


class SavingDialect:
    """The Responses dialect of one caller, whose responses go into that caller's history."""

    def __init__(self, dialect: ResponsesDialect, history: OwnedHistory, *, keep_all: bool = False) -> None:
        """`keep_all`: the history also keeps responses that are not to be stored."""
        self._keep_all = keep_all
        self._dialect = dialect
        self._history = history

    @property
    def name(self) -> str:
        return self._dialect.name

    @property
    def path(self) -> str:
        return self._dialect.path

    @property
    def id_prefix(self) -> str:
        return self._dialect.id_prefix

    @property
    def media(self) -> str:
        return self._dialect.media

    @property
    def contract(self) -> Contract[ResponsesBody]:
        return self._dialect.contract

    @property
    def answer(self) -> type[Struct] | None:
        return self._dialect.answer

    @property
    def failure(self) -> type[Struct]:
        return self._dialect.failure

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[ResponseShape]:
        return self._dialect.decode(body, context)

    def encoder(self, decoded: Decoded[ResponseShape], run: RunInfo) -> Encoder:
        encoder = self._dialect.encoder(decoded, run)
        keeps = self._keep_all or decoded.shape.draft.store or decoded.shape.conversation is not None
        if not keeps:
            return encoder
        return SavingEncoder(encoder, saver(self._history, decoded.shape, run, keep_all=self._keep_all))

    def status(self, report: ErrorReport) -> int:
        return self._dialect.status(report)

    def error(self, report: ErrorReport, request_id: str) -> bytes:
        return self._dialect.error(report, request_id)


class SavingEncoder:
    """Encodes a response, and tracks whether it has ended without being stored yet."""

    def __init__(self, encoder: ResponsesEncoder, save: Save) -> None:
        self.inner = encoder
        self.keep = save
        self._unsaved = False

    def start(self, accepted: Sequence[Accepted]) -> bytes:
        return self.inner.start(accepted)

    def event(self, event: Event, request: int = 0) -> bytes:
        frames = self.inner.event(event, request)
        if isinstance(event, Finished) and event.choice == 0:
            self._unsaved = True
        return frames

    def keep_alive(self) -> bytes:
        return self.inner.keep_alive()

    def failed(self, report: ErrorReport) -> bytes:
        self._unsaved = True
        return self.inner.failed(report)

    def end(self) -> bytes:
        return self.inner.end()

    def whole(self, completions: Sequence[Completion]) -> bytes:
        self._unsaved = True
        return self.inner.whole(completions)

    async def save(self) -> None:
        """Store the response if it has ended since the last call.

        This is done on a thread, because the input may be large and the disk slow.
        """
        if self._unsaved:
            self._unsaved = False
            await asyncio.to_thread(lambda: self.keep(self.inner.response()))


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

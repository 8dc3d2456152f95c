"""The models that one connection calls: which are served for its settings, and what they make of a recording.

Each call is a separate exchange with a line in the log, as over HTTP.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.requests import HTTPConnection, Request

from pippin.api.access.errors import INTERNAL
from pippin.api.access.exchange import Exchange, exchange_of, write_line
from pippin.api.answers.answer import Answer, check_model, run_info
from pippin.api.dialects.shared.openai import error_body
from pippin.api.http.body import NobodyWaits
from pippin.api.routing import VERSION, Api
from pippin.api.sockets.channel import asked_on, require_key
from pippin.api.sockets.realtime.conversation import Entry, MessageItem
from pippin.api.sockets.realtime.events import (
    Problem,
    ServerEvent,
    TranscriptCompleted,
    TranscriptDelta,
    TranscriptFailed,
    TranscriptionTokens,
    TranscriptionUsage,
)
from pippin.api.sockets.realtime.input_sound import Recording
from pippin.api.sockets.realtime.session import Settings, Transcription
from pippin.core.errors import ErrorReport, ServerError, trace_of
from pippin.core.events import Segment, Transcribed
from pippin.core.models import ModelInfo, ModelKind
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Task, Transcribe

log = logging.getLogger(__name__)

PATH: Final = f"{VERSION}/realtime"
OPERATION: Final = "realtime"

Send = Callable[[ServerEvent], Awaitable[None]]


class Calls:
    """The models for one connection, with the rights and limits of its caller."""

    def __init__(self, api: Api, socket: HTTPConnection) -> None:
        self.api = api
        self._socket = socket

    @property
    def exchange(self) -> Exchange:
        """The connection's exchange."""
        return exchange_of(self._socket.scope)

    async def find(self, name: str, kind: ModelKind) -> ModelInfo | None:
        """The model with that name; None if there is none of this kind, or if the caller may not use it."""
        try:
            info = await self.api.service.find(name, kind)
            check_model(self.exchange, name, info)
        except ServerError:
            return None
        return info if info.kind in (kind, "scripted") else None

    @asynccontextmanager
    async def generation(self, wanted: GenerationRequest) -> AsyncIterator[Answer]:
        """The answer of a language model, closed on exit. Raises `ServerError`."""
        async with self._logged() as request:
            handler, exchange = self.api.handler, exchange_of(request.scope)
            operation = await handler.prepare_generation(
                exchange, wanted, request.headers, operation=OPERATION, stream=True
            )
            answer = Answer(operation, exchange, NobodyWaits(), handler.answers)
            async with _closed_at_the_end(answer):
                yield answer

    @asynccontextmanager
    async def task(self, task: Task, model: str, *, counted: bool) -> AsyncIterator[Answer]:
        """The answer of another model, closed on exit. If `counted`, it counts as a request of the caller."""
        async with self._logged() as request:
            handler, exchange = self.api.handler, exchange_of(request.scope)
            if counted:
                handler.admit(exchange)
            operation = await handler.prepare_task(
                exchange, task, model=model, operation=OPERATION, stream=True
            )
            answer = Answer(operation, exchange, NobodyWaits(), handler.answers)
            async with _closed_at_the_end(answer):
                yield answer

    @asynccontextmanager
    async def _logged(self) -> AsyncIterator[Request]:
        # A single call has no client that could disconnect: the connection ends its calls when the client leaves.
        request = Request(asked_on(self._socket, PATH).scope, _never)
        exchange = exchange_of(request.scope)
        try:
            require_key(self.exchange)
            yield request
        except ServerError as error:
            exchange.status, exchange.refusal = error.report.status, error.report.message
            raise
        finally:
            write_line("SEND", exchange, exchange.status or 200)


async def _never() -> Any:
    await asyncio.Event().wait()


@asynccontextmanager
async def _closed_at_the_end(answer: Answer) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await asyncio.shield(answer.close())


async def check_served(
    calls: Calls, settings: Settings, path: str, before: Transcription | None = None
) -> None:
    """Raises `ServerError` if no model here can serve the settings. `before` is the transcription checked earlier."""
    asked = settings.transcription
    if asked is not None and asked.model is not None and asked != before:
        await _require(
            calls,
            asked.model,
            "transcription",
            f"{path}.audio.input.transcription.model",
            "leave `model` out",
        )
    if settings.speaks:
        await _require(calls, settings.speech_model, "speech", f"{path}.output_modalities", 'send ["text"]')


async def _require(calls: Calls, model: str, kind: ModelKind, param: str, instead: str) -> None:
    if await calls.find(model, kind) is None:
        raise ServerError(
            "model_not_found",
            f"No {kind} model is served here as {model!r}; serve one beside the language model, or {instead}.",
            param,
        )


async def opened(calls: Calls, model: str) -> tuple[Settings, bool]:
    """The settings of a new session, and whether its language model hears. Raises `ServerError`."""
    service = calls.api.service
    run = await run_info(service, model, calls.exchange, "language")
    if not run.known:
        await service.find(model, "language")
    info = await service.find(model, "language")
    speaks = await calls.find("default", "speech") is not None
    return Settings(model=model, modalities=("audio",) if speaks else ("text",)), info.capabilities.audio


async def transcribe(
    calls: Calls, entry: Entry, recording: Recording, settings: Transcription | None, send: Send
) -> None:
    """Set an item's transcript, or the reason why it has none. If `settings` is None, the client is not told."""
    index = sound_index(entry)
    asked = settings or Transcription()
    task = Transcribe(
        audio=recording.wav(),
        filename="audio.wav",
        language=asked.language or None,
        prompt=asked.prompt or None,
        stream=True,
    )
    try:
        async with calls.task(task, asked.model or "default", counted=True) as answer:
            begun = False
            async for events in answer.batches():
                for event in events:
                    match event:
                        case Segment(text=text) if settings is not None:
                            delta = text if begun else text.lstrip()
                            begun = True
                            await send(TranscriptDelta(item_id=entry.id, content_index=index, delta=delta))
                        case Transcribed() as done:
                            await _done(entry, index, done, send, told=settings is not None)
    except ServerError as error:
        entry.failure = error
    except Exception as error:
        log.error("A recording of a Realtime connection could not be written down.\n%s", trace_of(error))
        entry.failure = ServerError.of(INTERNAL)
    if entry.failure is not None and settings is not None:
        problem = problem_of(entry.failure.report)
        await send(TranscriptFailed(item_id=entry.id, content_index=index, error=problem))


async def _done(entry: Entry, index: int, done: Transcribed, send: Send, *, told: bool) -> None:
    assert isinstance(entry.item, MessageItem)
    entry.item.content[index].transcript = done.text
    if told:
        usage = TranscriptionUsage(
            input_tokens=done.usage.prompt_tokens,
            output_tokens=done.usage.completion_tokens,
            total_tokens=done.usage.total,
            input_token_details=TranscriptionTokens(audio_tokens=done.usage.prompt_tokens),
        )
        await send(
            TranscriptCompleted(item_id=entry.id, content_index=index, transcript=done.text, usage=usage)
        )


def sound_index(entry: Entry) -> int:
    """The index of the recording in a message."""
    assert isinstance(entry.item, MessageItem)
    return next(number for number, part in enumerate(entry.item.content) if part.type == "input_audio")


def problem_of(report: ErrorReport, event_id: str | None = None) -> Problem:
    """The content of an error event."""
    error = error_body(report).error
    return Problem(
        type=error.type, code=error.code, message=error.message, param=error.param, event_id=event_id
    )

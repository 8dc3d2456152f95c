"""Transcribes a recording of the user, for the client if it asks for that, and for a model that can't hear."""

import logging
from typing import Final

from pippin.api.access.errors import INTERNAL
from pippin.api.dialects.shared.openai import error_body
from pippin.api.sockets.realtime.calls import Calls, Send
from pippin.api.sockets.realtime.conversation import Entry
from pippin.api.sockets.realtime.events import (
    Problem,
    TranscriptCompleted,
    TranscriptDelta,
    TranscriptFailed,
    TranscriptionTokens,
    TranscriptionUsage,
)
from pippin.api.sockets.realtime.input_sound import Recording
from pippin.api.sockets.realtime.items import MessageItem
from pippin.api.sockets.realtime.session import Transcription
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import Segment, Transcribed
from pippin.core.tasks import Transcribe
from pippin.core.traces import trace_of

log = logging.getLogger(__name__)

DEFAULT: Final = "default"


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
        async with calls.task(task, asked.model or DEFAULT, counted=True) as answer:
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

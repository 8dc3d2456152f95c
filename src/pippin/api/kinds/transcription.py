"""`/v1/audio/transcriptions` and `/translations`: speech to text, by forms as OpenAI's SDK sends them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.dialects.base import StreamEncoder
from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import Contract, about, invalid, unsupported, without_effect
from pippin.api.dialects.shared.frames import EVENTS, typed_frame
from pippin.api.dialects.shared.openai import error_body
from pippin.api.http.body import drawn_bytes
from pippin.api.http.forms import Upload
from pippin.api.kinds.speech import NamedEvents
from pippin.api.routing import Api, Contents, both
from pippin.core.errors import ErrorReport
from pippin.core.events import Event, Segment, Transcribed
from pippin.core.tasks import Transcribe

Format = Literal["json", "text", "verbose_json", "srt", "vtt", "ndjson", "diarized_json"]
MEDIA: Final[dict[str, str]] = {
    "text": "text/plain; charset=utf-8",
    "srt": "text/plain; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
}
LINES: Final = "application/x-ndjson"
SHOWN: Final = (
    "id seek start end text tokens temperature avg_logprob compression_ratio no_speech_prob".split()
)
"""What is told of a segment, in OpenAI's order."""
LISTS: Final = frozenset({"timestamp_granularities", "include"})


class TranscriptionRequest(Struct, kw_only=True, omit_defaults=True):
    """The fields of the form. The sound is in its file `file`."""

    model: Annotated[Name, about("Name of the model.")] = "default"
    language: Annotated[
        Annotated[str, Meta(max_length=32)] | None,
        about("ISO code of the language that is spoken; detected if not set."),
    ] = None
    prompt: Annotated[str | None, about("Text that goes before, for style and names.")] = None
    response_format: Annotated[
        Format | None, about("json, text, verbose_json, srt, vtt, or ndjson (a line a segment).")
    ] = None
    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        about("Of sampling; not set begins with 0 and rises where decoding fails."),
    ] = None
    timestamp_granularities: Annotated[
        tuple[Literal["word", "segment"], ...] | None,
        about("What verbose_json shows the times of."),
    ] = None
    word_timestamps: Annotated[bool | None, about("mlx-vlm's way to ask for words.")] = None
    include: Annotated[tuple[str, ...] | None, about("Must be empty: no logprobs.")] = None
    stream: Annotated[bool | None, about("Send each segment as an event when it is ready.")] = None
    max_tokens: Annotated[int, about("Most tokens, for models that know it.", ge=1)] | None = None
    chunking_strategy: Annotated[Literal["auto"] | None, about("Only auto: the model's own windows.")] = None


CONTRACT: Final = Contract(TranscriptionRequest, *without_effect(__name__, "transcription"))
CONTRACTS: Final = {"POST /v1/audio/transcriptions, /translations (form with `file`)": CONTRACT}


class DurationUsage(Struct, kw_only=True):
    type: Literal["duration"] = "duration"
    seconds: float


class WordBody(Struct, kw_only=True):
    word: str
    start: float
    end: float


class TranscriptionReply(Struct, kw_only=True):
    text: str
    usage: DurationUsage


class VerboseReply(Struct, kw_only=True, omit_defaults=True):
    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    text: str
    segments: list[dict[str, Any]] | None = None
    words: list[WordBody] | None = None
    usage: DurationUsage


def task_of(fields: TranscriptionRequest, file: Upload, *, translate: bool) -> Transcribe:
    if fields.response_format == "diarized_json":
        raise unsupported("response_format", "speakers are not told apart; use verbose_json.")
    if fields.include:
        raise unsupported("include", "transcriptions have no logprobs; leave it out.")
    asks_words = "word" in (fields.timestamp_granularities or ()) or bool(fields.word_timestamps)
    if fields.timestamp_granularities and fields.response_format not in ("verbose_json", "ndjson"):
        raise invalid("timestamp_granularities", "needs `response_format` verbose_json.")
    if fields.stream and fields.response_format not in (None, "json", "ndjson"):
        raise invalid("response_format", "must be json or ndjson with `stream`.")
    if not file.data:
        raise invalid("file", "is empty; send a sound file.")
    return Transcribe(
        audio=file.data,
        filename=file.filename or None,
        translate=translate,
        language=fields.language or None,
        prompt=fields.prompt or None,
        temperature=fields.temperature,
        words=asks_words,
        stream=bool(fields.stream) or fields.response_format == "ndjson",
        max_tokens=fields.max_tokens,
    )


def draw(fields: TranscriptionRequest, task: Transcribe, done: Transcribed, events: Sequence[Event]) -> bytes:
    """The whole reply in the requested format."""
    segments = [event for event in events if isinstance(event, Segment)]
    match fields.response_format:
        case "text":
            return done.text.encode() + b"\n"
        case "srt" | "vtt" as form:
            # A text without segments becomes one long segment. One without a text would end a file for its readers.
            segments = [segment for segment in segments if segment.text.strip()]
            return subtitles(segments or [Segment(0, 0.0, done.duration, done.text)], form).encode()
        case "verbose_json":
            shown = fields.timestamp_granularities or ("segment",)
            reply = verbose(task, done)
            reply.language = done.language_name or reply.language
            reply.segments = [*map(told_of, segments)] if "segment" in shown else None
            reply.words = words_of(segments) if task.words else None
            return msgspec.json.encode(reply)
        case _:
            return msgspec.json.encode(TranscriptionReply(text=done.text, usage=verbose(task, done).usage))


def verbose(task: Transcribe, done: Transcribed) -> VerboseReply:
    """The reply without segments and words."""
    return VerboseReply(
        task="translate" if task.translate else "transcribe",
        language=done.language or "",
        duration=round(done.duration, 3),
        text=done.text,
        usage=DurationUsage(seconds=round(done.duration, 3)),
    )


def told_of(segment: Segment) -> dict[str, Any]:
    return {name: getattr(segment, name) for name in SHOWN}


def words_of(segments: list[Segment]) -> list[WordBody]:
    words = (word for segment in segments for word in segment.words)
    return [WordBody(word=word.text.strip(), start=word.start, end=word.end) for word in words]


def subtitles(segments: list[Segment], form: Literal["srt", "vtt"]) -> str:
    point = "," if form == "srt" else "."
    blocks = [] if form == "srt" else ["WEBVTT\n"]
    for number, segment in enumerate(segments, 1):
        # An arrow or an empty line inside a text would start another subtitle.
        line = " ".join(segment.text.split()).replace("-->", "->")
        times = f"{clock(segment.start, point)} --> {clock(segment.end, point)}"
        blocks.append(f"{number}\n{times}\n{line}\n" if form == "srt" else f"{times}\n{line}\n")
    return "\n".join(blocks)


def clock(seconds: float, point: str) -> str:
    milliseconds = round(max(0.0, seconds) * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"


class TranscriptionEvents(NamedEvents):
    """Encodes a transcription as OpenAI's events: a delta for each segment, then the whole text."""

    def __init__(self) -> None:
        self._begun = False

    def event(self, event: Event, request: int = 0) -> bytes:
        match event:
            case Segment(text=text):
                delta = text if self._begun else text.lstrip()
                self._begun = True
                return typed_frame("transcript.text.delta", delta=delta)
            case Transcribed(text=text, usage=usage):
                figures = {
                    "type": "tokens",
                    "input_tokens": usage.prompt_tokens,
                    "input_token_details": {"audio_tokens": usage.prompt_tokens, "text_tokens": 0},
                    "output_tokens": usage.completion_tokens,
                    "total_tokens": usage.total,
                }
                return typed_frame("transcript.text.done", text=text, usage=figures)
            case _:
                return b""


class TranscriptionLines(StreamEncoder):
    """Encodes a transcription as lines of JSON: one for each segment, and a last one with the whole text."""

    def __init__(self, task: Transcribe) -> None:
        self._task = task

    def event(self, event: Event, request: int = 0) -> bytes:
        match event:
            case Segment():
                body = told_of(event)
                if self._task.words:
                    body["words"] = words_of([event])
                return msgspec.json.encode(body) + b"\n"
            case Transcribed():
                return msgspec.json.encode(verbose(self._task, event)) + b"\n"
            case _:
                return b""

    def keep_alive(self) -> bytes:
        return b""

    def failed(self, report: ErrorReport) -> bytes:
        return msgspec.json.encode(error_body(report)) + b"\n"


def routes(api: Api) -> list[BaseRoute]:
    audio, written = Transcribing(api), sorted({*MEDIA.values(), LINES})
    known = Contents(body=TranscriptionRequest, answer=TranscriptionReply, form=True, media=written)
    return [
        *both("/audio/transcriptions", audio.transcribe, "POST", **known),
        *both("/audio/translations", audio.translate, "POST", **known),
    ]


@dataclass(frozen=True)
class Transcribing:
    api: Api

    async def transcribe(self, request: Request) -> Response:
        """Speech as text"""
        return await self._transcribe(request, translate=False)

    async def translate(self, request: Request) -> Response:
        """Speech of any language as English text"""
        return await self._transcribe(request, translate=True)

    async def _transcribe(self, request: Request, *, translate: bool) -> Response:
        handler = self.api.handler
        form = await handler.form_of(request)
        # As in vllm-mlx, the query string has fields too; those of the form win.
        given = {name: [text] for name, text in request.query_params.items()} | form.fields
        fields, unknown = CONTRACT.decode_form(given, lists=LISTS)
        operation = "translations" if translate else "transcriptions"
        handler.note_unknown(operation, tuple(name for name in unknown if name != "file"))
        task = task_of(fields, form.only_file("file"), translate=translate)
        is_lines = fields.response_format == "ndjson"
        if is_lines or fields.stream:
            streamed = await handler.prepare_task(
                request,
                task,
                model=fields.model,
                operation=operation,
                encoder=TranscriptionLines(task) if is_lines else TranscriptionEvents(),
                media=LINES if is_lines else EVENTS,
            )
            return await handler.answers.reply(request, streamed)
        done, found = await handler.task(request, task, Transcribed, model=fields.model, operation=operation)
        if self.api.settings.settings.compat == "mlx-vlm":  # which answers with the code
            done = msgspec.structs.replace(done, language_name=None)
        media = MEDIA.get(fields.response_format or "json", "application/json")
        drawn = await handler.large.do(drawn_bytes(found), draw, fields, task, done, found)
        return Response(drawn, headers={"content-type": media})

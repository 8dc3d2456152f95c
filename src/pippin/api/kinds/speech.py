"""`/v1/audio/speech`, in OpenAI's form, and `/voices`: text to speech."""

import base64
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import exchange_of
from pippin.api.dialects.base import StreamEncoder
from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import Contract, about, invalid, without_effect
from pippin.api.dialects.shared.frames import EVENTS, event_frame, typed_frame
from pippin.api.dialects.shared.openai import error_body
from pippin.api.routing import Api, both, json_reply
from pippin.core.decoding import convert
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import Event, SpeechChunk, Spoken, Voices
from pippin.core.tasks import FileFormat, ListVoices, Speak

MEDIA: Final[dict[str, str]] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
ANY_VOICE: Final = "default"
"""OpenAI's SDK requires a voice; this value leaves the choice to the model."""


class VoiceName(Struct):
    id: Name


class SpeechRequest(Struct, kw_only=True, omit_defaults=True):
    input: Annotated[str, about("The text to speak.", min_length=1)]
    model: Annotated[Name, about("Name of the model.")] = "default"
    voice: Annotated[
        Name | VoiceName | None, about("A voice of the model; `default` leaves it to the model.")
    ] = None
    instructions: Annotated[str | None, about("How to speak, for models that are told.")] = None
    instruct: Annotated[str | None, about("mlx-vlm's name for it.")] = None
    response_format: Annotated[
        FileFormat | None,
        about("mp3 if the operator says nothing else; pcm is 16 bits, little-endian, at the model's rate."),
    ] = None
    speed: Annotated[float, about("1 is the voice's own.", ge=0.25, le=4)] | None = None
    stream_format: Annotated[
        Literal["audio", "sse"] | None, about("Bytes of sound, or events that hold them.")
    ] = None
    stream: Annotated[bool | None, about("Let the model give sound in shorter pieces, where it can.")] = None
    streaming_interval: Annotated[
        Annotated[float, Meta(gt=0, le=600)] | None,
        about("Seconds of sound in a piece, for models that take it."),
    ] = None
    gender: Annotated[Literal["female", "male"] | None, about("Of the voice, for models that are told.")] = (
        None
    )
    pitch: Annotated[float, about("1 is the voice's own.", gt=0, le=10)] | None = None
    lang_code: Annotated[str | None, about("Language, for models that are told.")] = None
    ref_audio: Annotated[str | None, about("A recording of the voice to imitate: data URI or address.")] = (
        None
    )
    ref_text: Annotated[str | None, about("What is said in it.")] = None
    temperature: Annotated[float, about("Of sampling, for models that sample.", ge=0, le=10)] | None = None
    top_p: Annotated[float, about("Of sampling, for models that take it.", gt=0, le=1)] | None = None
    top_k: Annotated[int, about("Of sampling, for models that take it.", ge=0, le=10**6)] | None = None
    repetition_penalty: Annotated[float, about("Of sampling; 1 is none.", gt=0, le=10)] | None = None
    max_tokens: Annotated[int, about("Most tokens of sound.", ge=1, le=10**6)] | None = None
    seed: Annotated[int, about("Same seed, same sound.", ge=0, lt=2**32)] | None = None


CONTRACT: Final = Contract(SpeechRequest, *without_effect(__name__, "speech"))
CONTRACTS: Final = {"POST /v1/audio/speech": CONTRACT}


def task_of(
    fields: SpeechRequest, reference: bytes | None, *, longest: int, usual: FileFormat = "mp3"
) -> Speak:
    """The task of a body; `usual` is the format if the body names none.

    Raises `ServerError` if `input` has more than `longest` characters. The limit exists because a text occupies the
    model until all of it is spoken.
    """
    if not fields.input.strip():
        raise invalid("input", "must not be empty.")
    if len(fields.input) > longest:
        raise invalid("input", f"has {len(fields.input)} characters; send at most {longest} at a time.")
    voice = fields.voice.id if isinstance(fields.voice, VoiceName) else fields.voice
    told = {
        "text": fields.input,
        "voice": None if voice == ANY_VOICE else voice,
        "speed": 1.0 if fields.speed is None else fields.speed,
        "format": fields.response_format or usual,
        "instructions": fields.instructions or fields.instruct or None,
        "language": fields.lang_code or None,
        "reference_audio": reference,
        "reference_text": fields.ref_text or None,
        "stream": bool(fields.stream) or fields.stream_format == "sse",
    }
    return convert(asdict(fields) | told, Speak)  # the settings of sampling have the same names


class SpeechBytes(StreamEncoder):
    """Encodes speech as raw sound: no keep-alive can be sent in between, and a failure can only end the stream."""

    def event(self, event: Event, request: int = 0) -> bytes:
        return event.data if isinstance(event, SpeechChunk) else b""

    def keep_alive(self) -> bytes:
        return b""


class NamedEvents(StreamEncoder):
    """Encodes events in OpenAI's form: the name is also in the body, and a failure is the event `error`."""

    def failed(self, report: ErrorReport) -> bytes:
        return event_frame("error", error_body(report))


class SpeechEvents(NamedEvents):
    """Encodes speech as OpenAI's events: pieces of sound in base64, then the usage."""

    def event(self, event: Event, request: int = 0) -> bytes:
        match event:
            case SpeechChunk(data=data):
                return typed_frame("speech.audio.delta", audio=base64.b64encode(data).decode())
            case Spoken(usage=usage):
                figures = {
                    "input_tokens": usage.prompt_tokens,
                    "output_tokens": usage.completion_tokens,
                    "total_tokens": usage.total,
                }
                return typed_frame("speech.audio.done", usage=figures)
            case _:
                return b""


def routes(api: Api) -> list[BaseRoute]:
    speech, sounds = Speaking(api), sorted({*MEDIA.values(), EVENTS})
    return [
        *both("/audio/speech", speech.speak, "POST", body=SpeechRequest, media=sounds),
        *both("/audio/voices", speech.voices),
    ]


class Speaking(Struct, frozen=True):
    api: Api

    async def speak(self, request: Request) -> Response:
        """Text as speech"""
        handler = self.api.handler
        asked = {name: [text] for name, text in request.query_params.items()}

        def decode(body: bytes) -> tuple[SpeechRequest, tuple[str, ...]]:
            if not body and "input" in asked:  # vllm-mlx's form, whose default is wav
                return CONTRACT.decode_form({"response_format": ["wav"], **asked})
            return CONTRACT.decode(body)

        fields = await handler.fields_of(request, "speech", decode)
        reference = None
        if fields.ref_audio:
            reference = (await handler.media.fetch(fields.ref_audio, "ref_audio")).data
        options = self.api.options
        task = task_of(fields, reference, longest=options.max_speech_chars, usual=options.speech_format)
        is_told = fields.stream_format == "sse"
        operation = await handler.prepare_task(
            request,
            task,
            model=fields.model,
            operation="speech",
            encoder=SpeechEvents() if is_told else SpeechBytes(),
            media=EVENTS if is_told else MEDIA[task.format],
        )
        return await handler.answers.reply(request, operation)

    async def voices(self, request: Request) -> Response:
        """The voices of a model in memory: to look must not load one, nor download it"""
        name = request.query_params.get("model") or "default"
        info = await self.api.service.names.find(name, ListVoices.model_kind)
        if info.id not in {state.id for state in self.api.service.pool.states() if state.state == "loaded"}:
            if info.kind not in (ListVoices.model_kind, "scripted"):
                message = f"The model {info.id!r} is of kind {info.kind}: name one that speaks in `model`."
                raise ServerError("invalid_request", message, "model")
            raise ServerError(
                "conflict",
                f"The model {info.id!r} is not in memory; load it with POST /v1/models/load, or let it speak first.",
                "model",
            )
        self.api.handler.limits.admit(exchange_of(request.scope))
        found, _ = await self.api.handler.task(request, ListVoices(), Voices, model=name, operation="voices")
        data = [{"id": voice, "name": voice, "object": "audio.voice"} for voice in found.names]
        return json_reply({"object": "list", "data": data, "voices": list(found.names)})

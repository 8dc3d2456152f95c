"""Bodies and replies of `/v1/audio/speech`, in OpenAI's form."""

import base64
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from pippin.api.dialects.base import StreamEncoder
from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import BOOKKEEPING, Contract, invalid
from pippin.api.dialects.shared.frames import event_frame, typed_frame
from pippin.api.dialects.shared.openai import error_body
from pippin.core.decoding import convert
from pippin.core.errors import ErrorReport
from pippin.core.events import Event, SpeechChunk, Spoken
from pippin.core.tasks import FileFormat, Speak

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
    input: Annotated[str, Meta(min_length=1, description="The text to speak.")]
    model: Annotated[Name, Meta(description="Name of the model.")] = "default"
    voice: Annotated[
        Name | VoiceName | None, Meta(description="A voice of the model; `default` leaves it to the model.")
    ] = None
    instructions: Annotated[str | None, Meta(description="How to speak, for models that are told.")] = None
    instruct: Annotated[str | None, Meta(description="mlx-vlm's name for it.")] = None
    response_format: Annotated[
        FileFormat | None,
        Meta(
            description="mp3 if the operator says nothing else; pcm is 16 bits, little-endian, at the model's rate."
        ),
    ] = None
    speed: Annotated[float, Meta(ge=0.25, le=4, description="1 is the voice's own.")] | None = None
    stream_format: Annotated[
        Literal["audio", "sse"] | None, Meta(description="Bytes of sound, or events that hold them.")
    ] = None
    stream: Annotated[
        bool | None, Meta(description="Let the model give sound in shorter pieces, where it can.")
    ] = None
    streaming_interval: Annotated[
        Annotated[float, Meta(gt=0, le=600)] | None,
        Meta(description="Seconds of sound in a piece, for models that take it."),
    ] = None
    gender: Annotated[
        Literal["female", "male"] | None, Meta(description="Of the voice, for models that are told.")
    ] = None
    pitch: Annotated[float, Meta(gt=0, le=10, description="1 is the voice's own.")] | None = None
    lang_code: Annotated[str | None, Meta(description="Language, for models that are told.")] = None
    ref_audio: Annotated[
        str | None, Meta(description="A recording of the voice to imitate: data URI or address.")
    ] = None
    ref_text: Annotated[str | None, Meta(description="What is said in it.")] = None
    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=10)] | None, Meta(description="Of sampling, for models that sample.")
    ] = None
    top_p: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None, Meta(description="Of sampling, for models that take it.")
    ] = None
    top_k: Annotated[
        Annotated[int, Meta(ge=0, le=10**6)] | None, Meta(description="Of sampling, for models that take it.")
    ] = None
    repetition_penalty: Annotated[
        Annotated[float, Meta(gt=0, le=10)] | None, Meta(description="Of sampling; 1 is none.")
    ] = None
    max_tokens: Annotated[int, Meta(ge=1, le=10**6, description="Most tokens of sound.")] | None = None
    seed: Annotated[int, Meta(ge=0, lt=2**32, description="Same seed, same sound.")] | None = None


CONTRACT: Final = Contract(
    SpeechRequest, {"user": BOOKKEEPING, "verbose": "How talkative the log is, the operator sets."}
)
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

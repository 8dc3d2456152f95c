"""The tools `transcribe` and `speak`: speech as text, and text as speech."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import invalid
from pippin.api.dialects.shared.media import sound_of
from pippin.api.kinds.speech import MEDIA
from pippin.api.mcp_tools.tool import Call, Done, Tool
from pippin.core.conversation import Inline, Missing, Url
from pippin.core.errors import ServerError
from pippin.core.events import Segment, SpeechChunk, Spoken, Transcribed
from pippin.core.tasks import Speak, Transcribe
from pippin.mcp.toolbox import Sound


class TranscribeArguments(Struct, kw_only=True, omit_defaults=True):
    audio: Annotated[
        str, Meta(min_length=1, description="The sound: base64, a data: URI, or an http(s) address.")
    ]
    model: Annotated[Name, Meta(description="The id of a transcription model.")] = "default"
    language: Annotated[
        Annotated[str, Meta(max_length=32)] | None,
        Meta(description="ISO code of the language that is spoken; detected if not set."),
    ] = None
    prompt: Annotated[str | None, Meta(description="Text that goes before, for style and names.")] = None
    translate: Annotated[bool, Meta(description="Into English.")] = False


class TimedText(Struct, kw_only=True):
    start: Annotated[float, Meta(description="Seconds.")]
    end: float
    text: str


class Transcript(Struct, kw_only=True):
    text: str
    language: str | None
    duration: Annotated[float, Meta(description="Seconds of sound.")]
    segments: list[TimedText]
    model: str


class SpeakArguments(Struct, kw_only=True, omit_defaults=True):
    text: Annotated[str, Meta(min_length=1, description="What to say.")]
    model: Annotated[Name, Meta(description="The id of a speech model.")] = "default"
    voice: Annotated[Name | None, Meta(description="A voice of the model.")] = None
    instructions: Annotated[str | None, Meta(description="How to speak, for models that are told.")] = None
    speed: Annotated[Annotated[float, Meta(ge=0.25, le=4)], Meta(description="1 is the voice's own.")] = 1.0
    format: Literal["mp3", "opus", "aac", "flac", "wav"] = "mp3"


class Speech(Struct, kw_only=True):
    format: str
    duration: Annotated[float, Meta(description="Seconds.")]
    model: str


async def transcribe(call: Call, arguments: TranscribeArguments) -> Done:
    task = Transcribe(
        audio=await _bytes_of(call, arguments.audio),
        translate=arguments.translate,
        language=arguments.language or None,
        prompt=arguments.prompt or None,
    )
    found = await call.perform(task, arguments.model, "mcp_transcribe", "The model listens.")
    done = found.ending
    assert isinstance(done, Transcribed)
    segments = [
        TimedText(start=each.start, end=each.end, text=each.text)
        for each in found.events
        if isinstance(each, Segment)
    ]
    transcript = Transcript(
        text=done.text,
        language=done.language,
        duration=round(done.duration, 3),
        segments=segments,
        model=found.model,
    )
    return Done(result=transcript, text=done.text)


async def _bytes_of(call: Call, audio: str) -> bytes:
    match sound_of(audio, None, "audio").source:
        case Inline(data=data):
            return data
        case Url(url):
            return (await call.api.media.fetch(url, "audio")).data
        case Missing(report):
            raise ServerError.of(report)


async def speak(call: Call, arguments: SpeakArguments) -> Done:
    longest = call.api.options.max_speech_chars
    if not arguments.text.strip():
        raise invalid("text", "must not be empty.")
    if len(arguments.text) > longest:
        raise invalid("text", f"has {len(arguments.text)} characters; send at most {longest} at a time.")
    task = Speak(
        text=arguments.text,
        voice=arguments.voice,
        speed=arguments.speed,
        format=arguments.format,
        instructions=arguments.instructions or None,
    )
    found = await call.perform(task, arguments.model, "mcp_speak", "The model speaks.")
    assert isinstance(found.ending, Spoken)
    data = b"".join(each.data for each in found.events if isinstance(each, SpeechChunk))
    duration = round(found.ending.duration, 3)
    return Done(
        result=Speech(format=arguments.format, duration=duration, model=found.model),
        text=f"{duration:g} seconds of speech.",
        sound=Sound(data=data, media=MEDIA[arguments.format]),
    )


TRANSCRIBE: Final = Tool(
    "transcribe",
    "Transcribe speech",
    "What is said in a recording, as text, with the times of its parts.",
    TranscribeArguments,
    Transcript,
    transcribe,
    kind="transcription",
)
SPEAK: Final = Tool(
    "speak",
    "Speak a text",
    "A text as speech: a sound in the format that is asked for.",
    SpeakArguments,
    Speech,
    speak,
    kind="speech",
)

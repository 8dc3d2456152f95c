"""Scripted answers to everything but generation: plain functions of the input, so that tests can foretell them."""

import io
import math
import struct
import wave
import zlib
from collections.abc import Sequence

import numpy as np

from pippin.core.conversation import Part, Text
from pippin.core.errors import ServerError
from pippin.core.events import (
    Embedded,
    Event,
    Picture,
    PicturesDone,
    Ranked,
    Segment,
    SpeechChunk,
    Spoken,
    Transcribed,
    Usage,
    Voices,
    Word,
)
from pippin.core.models import ModelInfo
from pippin.core.tasks import Conversation, Embed, GenerateImages, ListVoices, Rerank, Speak, Task, Transcribe
from pippin.engines.scripted import tokenizer

VOICES = ("alba", "basil")
SAMPLE_RATE = 16000
SECONDS_PER_CHARACTER = 0.01
IMAGE_TOKENS = 10


def answer(task: Task, info: ModelInfo, window: int) -> tuple[Event, ...]:
    match task:
        case Embed():
            return (_embed(task, info.dimensions or 16, window),)
        case Rerank():
            return (_rerank(task),)
        case Transcribe():
            return _transcribe(task)
        case Speak():
            return _speak(task)
        case ListVoices():
            return (Voices(VOICES),)
        case GenerateImages():
            return _draw(task)
        case _:
            raise ServerError("unsupported", f"The scripted model {info.id!r} does not do this.", "model")


def _embed(task: Embed, dimensions: int, window: int) -> Embedded:
    """Each word adds one to the dimension that its checksum names; then normalised."""
    width = task.dimensions or dimensions
    if width > dimensions:
        message = f"dimensions is {width}; the model has {dimensions}."
        raise ServerError("invalid_request", message, "dimensions")
    texts = [_written(each) for each in task.inputs]
    count, rows = 0, []
    for number, text in enumerate(texts):
        words = tokenizer.pieces(text)
        if len(words) > window:
            if task.overflow != "truncate":
                message = f"Input {number} has {len(words)} tokens; the model takes {window}."
                raise ServerError("context_length_exceeded", message, f"input[{number}]")
            words = words[:window]
        count += len(words)
        vector = [0.0] * dimensions
        for word in words:
            vector[zlib.crc32(word.strip().lower().encode()) % dimensions] += 1.0
        length = math.sqrt(sum(value * value for value in vector[:width])) or 1.0
        rows.append([value / length for value in vector[:width]])
    return Embedded(np.array(rows, "<f4").tobytes(), width, count)


def _written(item: str | tuple[int, ...] | Conversation) -> str:
    match item:
        case str():
            return item
        case Conversation(messages=messages):
            return " ".join(_text_of(message.parts) for message in messages)
        case tokens:
            return tokenizer.decode(tokens)


def _rerank(task: Rerank) -> Ranked:
    """The share of the query's words that a document holds."""
    scores, count = [], 0
    wanted = {word.strip().lower() for word in tokenizer.pieces(task.query) if word.strip()}
    for document in task.documents:
        words = [word.strip().lower() for word in tokenizer.pieces(_text_of(document.parts))]
        count += len(words) + len(wanted)
        scores.append(len(wanted.intersection(words)) / max(1, len(wanted)))
    return Ranked(tuple(scores), count)


def _transcribe(task: Transcribe) -> tuple[Event, ...]:
    """Two sentences that name the file and its size, a second each."""
    if not task.audio:
        raise ServerError("invalid_request", "The audio file is empty.", "file")
    sentences = (f"This is {task.filename or 'a recording'}.", f" It has {len(task.audio)} bytes.")
    segments = [
        Segment(
            id=number,
            start=float(number),
            end=number + 1.0,
            text=text,
            tokens=tokenizer.encode(text),
            temperature=task.temperature or 0.0,
            avg_logprob=-0.1,
            compression_ratio=1.0,
            words=(Word(text.strip(), float(number), number + 1.0, 0.9),) if task.words else (),
        )
        for number, text in enumerate(sentences)
    ]
    usage = Usage(completion_tokens=sum(len(segment.tokens) for segment in segments))
    language = "en" if task.translate else task.language or "en"
    return (*segments, Transcribed("".join(sentences), language, 2.0, usage=usage))


def _speak(task: Speak) -> tuple[Event, ...]:
    """A tone, a hundredth of a second for each character; silence in G.711, WAV for all other formats but raw PCM."""
    if task.voice is not None and task.voice not in VOICES:
        known = ", ".join(VOICES)
        raise ServerError(
            "invalid_request", f"There is no voice {task.voice!r}. Known are: {known}.", "voice"
        )
    seconds = len(task.text) * SECONDS_PER_CHARACTER / task.speed
    rate = task.rate or SAMPLE_RATE
    moments = np.arange(int(seconds * rate)) / rate
    sound = (8000 * np.sin(2 * np.pi * 440 * (task.pitch or 1.0) * moments)).astype("<i2").tobytes()
    if task.format != "pcm":
        file = io.BytesIO()
        with wave.open(file, "wb") as written:
            written.setparams((1, 2, SAMPLE_RATE, 0, "NONE", "NONE"))  # mono, 16 bits
            written.writeframes(sound)
        sound = file.getvalue()
    size = max(1, len(sound) // 4 if task.stream else len(sound))
    pieces = [sound[start : start + size] for start in range(0, len(sound), size)]
    usage = Usage(prompt_tokens=len(tokenizer.pieces(task.text)))
    return (*(SpeechChunk(piece) for piece in pieces), Spoken(SAMPLE_RATE, seconds, usage=usage))


def _draw(task: GenerateImages) -> tuple[Event, ...]:
    """PNG files of one colour, which prompt and seed decide."""
    width, height = task.width or 64, task.height or 64
    events: list[Event] = []
    for index in range(task.n):
        seed = (task.seed or 0) + index
        data = _png(width, height, zlib.crc32(f"{task.prompt}/{seed}".encode()))
        events.append(Picture(index, data, width, height, seed))
    usage = Usage(prompt_tokens=len(tokenizer.pieces(task.prompt)), completion_tokens=task.n)
    return (*events, PicturesDone(usage=usage))


def _png(width: int, height: int, colour: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    row = b"\x00" + colour.to_bytes(4, "big")[1:] * width
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row * height)) + chunk(b"IEND", b"")


def _text_of(parts: Sequence[Part]) -> str:
    return "".join(part.text if isinstance(part, Text) else " <image>" * IMAGE_TOKENS for part in parts)

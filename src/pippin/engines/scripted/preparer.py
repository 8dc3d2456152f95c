"""Turns tasks into scripted jobs: finds the rule, counts tokens, refuses what does not fit.

Tasks other than generation are answered by plain functions of the input, so that tests can foretell them.
"""

import io
import json
import math
import struct
import time
import wave
import zlib
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import Struct, field

from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Image, Message, Part, Reasoning, Text, ToolCall, ToolResult
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.events import (
    Accepted,
    Counted,
    Detokenized,
    Embedded,
    Event,
    Picture,
    PicturesDone,
    Ranked,
    Rendered,
    Segment,
    SpeechChunk,
    Spoken,
    Tokenized,
    Transcribed,
    Usage,
    Voices,
    Word,
)
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import (
    Conversation,
    CountTokens,
    Detokenize,
    Embed,
    Generate,
    GenerateImages,
    ListVoices,
    RenderTemplate,
    Rerank,
    Speak,
    Task,
    Tokenize,
    Transcribe,
)
from pippin.engines.attachments.reading import AttachmentReader, Readable
from pippin.engines.refusals import refused
from pippin.engines.scripted import tokenizer
from pippin.engines.scripted.performance import Performance, perform
from pippin.engines.scripted.script import Rule, holds, load_script
from pippin.output.checking import repeated_calls
from pippin.output.formats import reasoning_format, tool_format


class ScriptedJob(Struct, frozen=True):
    id: str
    accepted: Accepted
    request: GenerationRequest
    rule: Rule
    prompt: str
    choices: tuple[Performance, ...]
    created: float = field(default_factory=time.monotonic)


class ScriptedPreparer:
    """Safe for use from several threads at once."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.script = load_script(spec.info.path)
        self.options = convert(spec.options, ModelOptions)
        self.tool_format = tool_format(self.options.tool_call_parser or self.script.tool_format)
        self.reasoning_format = reasoning_format(
            self.options.reasoning_parser or self.script.reasoning_format
        )
        window = spec.info.context_window or self.script.context_window
        self.window = min(window, self.options.context_length or window)
        self._attachments = AttachmentReader(self.options.unreadable_media)
        self.info: ModelInfo = msgspec.structs.replace(
            spec.info,
            context_window=self.window,
            capabilities=self.script.capabilities,
            architecture="scripted",
            tool_format=self.tool_format.name,
            reasoning_format=self.reasoning_format.name,
            dimensions=self.script.dimensions,
        )

    def prepare(self, id: str, task: Task) -> ScriptedJob | tuple[Event, ...]:
        match task:
            case Generate(request):
                return self._job(id, request)
            case CountTokens(request):
                return (Counted(len(tokenizer.pieces(render(self._readable(request).request)))),)
            case RenderTemplate(request):
                prompt = render(self._readable(request).request)
                return (Rendered(prompt, tokenizer.encode(prompt)),)
            case Tokenize(text, _, with_pieces):
                tokens = tokenizer.encode(text)
                pieces = tuple(map(tokenizer.token_bytes, tokens)) if with_pieces else ()
                return (Tokenized(tokens, pieces),)
            case Detokenize(tokens):
                return (Detokenized(tokenizer.decode(tokens)),)
            case Embed():
                return (_embed(task, self.script.dimensions or 16, self.window),)
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
                message = f"The scripted model {self.info.id!r} does not do this."
                raise ServerError("unsupported", message, "model")

    def _job(self, id: str, request: GenerationRequest) -> ScriptedJob:
        readable = self._readable(request)
        rule = next((each for each in self.script.rules if holds(each.when, readable.request)), Rule())
        if rule.error is not None:
            raise ServerError.of(rule.error)
        window = min(self.window, request.context_limit or self.window)
        request = self._fitted(readable.request, window)
        prompt = render(request)
        used = len(tokenizer.pieces(prompt))
        room = window - used
        limit = room if request.max_tokens is None else min(request.max_tokens, room)
        choices = tuple(
            perform(request, rule, limit, choice, self.tool_format, self.reasoning_format)
            for choice in range(request.n)
        )
        warnings = readable.warnings + repeated_calls(request)
        return ScriptedJob(id, Accepted(used, warnings), request, rule, prompt, choices)

    def _readable(self, request: GenerationRequest) -> Readable:
        can = self.script.capabilities
        modalities = (("image", can.images), ("audio", can.audio), ("video", can.video))
        return self._attachments.read(request, {modality for modality, taken in modalities if taken})

    def _fitted(self, request: GenerationRequest, window: int) -> GenerationRequest:
        """The request with what the overflow policy leaves of it."""
        while (used := tokenizer.count(render(request), window)) >= window:
            messages = request.messages or ()
            # The first that may be dropped: no instructions, and not the last.
            free = (n for n, each in enumerate(messages[:-1]) if each.role not in ("system", "developer"))
            oldest = next(free, None) if request.overflow == "truncate" else None
            if oldest is None:
                raise ServerError(
                    "context_length_exceeded",
                    f"The prompt has {used} tokens or more, but the context window of {self.info.id!r} holds "
                    f"{window}. Shorten the messages.",
                    "messages" if request.messages is not None else "prompt",
                )
            request = msgspec.structs.replace(request, messages=messages[:oldest] + messages[oldest + 1 :])
        return request


def render(request: GenerationRequest) -> str:
    """The prompt's text: a plain template of a line for each message."""
    if request.messages is None:
        prompt = request.prompt or ""
        return prompt if isinstance(prompt, str) else tokenizer.decode(prompt)
    tools = [f"<|tool|>{json.dumps([tool.name, tool.parameters])}\n" for tool in request.tools]
    turns = [f"<|{message.role}|>{_shown(message)}\n" for message in request.messages]
    opening = "" if request.continue_final else "<|assistant|>"
    return "".join(tools + turns) + opening


def _shown(message: Message) -> str:
    shown = []
    for part in message.parts:
        match part:
            case Text(text) | Reasoning(text):
                shown.append(text)
            case ToolCall(_, name, arguments):
                shown.append(f"{name}({arguments})")
            case ToolResult(_, parts):
                shown += [inner.text for inner in parts if isinstance(inner, Text)]
            case Image():
                shown.append("<image>")
            case _:
                shown.append("<media>")
    return "".join(shown)


open_preparer = ScriptedPreparer


VOICES = ("alba", "basil")
SAMPLE_RATE = 16000
SECONDS_PER_CHARACTER = 0.01
IMAGE_TOKENS = 10


def _embed(task: Embed, dimensions: int, window: int) -> Embedded:
    """Each word adds one to the dimension that its checksum names; then normalised."""
    width = task.dimensions or dimensions
    if width > dimensions:
        raise refused("dimensions", f"is {width}; the model has {dimensions}.")
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
    """A tone, a hundredth of a second for each character; WAV for all formats but raw PCM."""
    if task.voice is not None and task.voice not in VOICES:
        known = ", ".join(VOICES)
        raise ServerError(
            "invalid_request", f"There is no voice {task.voice!r}. Known are: {known}.", "voice"
        )
    seconds = len(task.text) * SECONDS_PER_CHARACTER / task.speed
    moments = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
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

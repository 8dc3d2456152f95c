"""Tasks for models and tokenizers, generation among them, with what of a conversation is prepared for them."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from pippin.core.conversation import (
    Attachment,
    Document,
    Image,
    MediaPart,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Video,
)
from pippin.core.models import ModelKind
from pippin.core.requests import GenerationRequest

_ANNOUNCES: Final = re.compile(r"\s*(?:[^\n]*\bfrom tool result\b[^\n]*:|</?[^<>\n]+>)?\s*", re.IGNORECASE)
"""What agents write beside pictures of a tool's result, such as `Attached image(s) from tool result:`."""


def media_of(parts: Iterable[Part]) -> Iterator[Attachment]:
    """The attachments among these parts, those of tool results too."""
    for part in parts:
        if isinstance(part, Attachment):
            yield part
        elif isinstance(part, ToolResult):
            yield from media_of(part.parts)


def attachments(messages: Iterable[Message]) -> Iterator[tuple[str, Attachment, int]]:
    """Each attachment with its field and the index of its message, in the order in which prompts name them: of a
    message, those of its tool results first."""
    for index, message in enumerate(messages):
        at = f"messages[{index}]"
        results = (
            (f"{at}.content[{number}]", part.parts)
            for number, part in enumerate(message.parts)
            if isinstance(part, ToolResult)
        )
        for where, parts in (*results, (at, message.parts)):
            for number, part in enumerate(parts):
                if isinstance(part, Attachment):
                    yield part.field or f"{where}.content[{number}]", part, index


Change = Callable[[Attachment, str, int], Iterable[Part]]
"""What takes the place of an attachment, of its field, in the message of an index."""


def with_attachments(messages: Iterable[Message], change: Change) -> tuple[Message, ...]:
    """The messages with something else in the place of each attachment, in their order; tool results have some too."""

    def parts_of(parts: Iterable[Part], at: str, index: int) -> Iterator[Part]:
        for number, part in enumerate(parts):
            where = f"{at}.content[{number}]"
            if isinstance(part, Attachment):
                yield from change(part, part.field or where, index)
            elif isinstance(part, ToolResult):
                yield replace(part, parts=tuple(parts_of(part.parts, where, index)))
            else:
                yield part

    return tuple(
        replace(message, parts=tuple(parts_of(message.parts, f"messages[{index}]", index)))
        for index, message in enumerate(messages)
    )


def media_parts(messages: Iterable[Message]) -> list[tuple[str, MediaPart]]:
    """The pictures, recordings and videos of a conversation, each with its field, in the order of `attachments`."""
    return [(where, part) for where, part, _ in attachments(messages) if not isinstance(part, Document)]


def newest_question(messages: Sequence[Message], *, continued: bool) -> int | None:
    """The index of the user's message that the answer is for; None if the last turn is of a tool.

    Agents send the pictures of a tool's result as a message of the user behind it, so media alone belong to the turn
    before them. `continued`: the last message is the beginning of the answer.
    """
    newest = None
    for index in reversed(range(len(messages) - continued)):
        message = messages[index]
        said = [
            part
            for part in message.parts
            if not isinstance(part, Attachment)
            and not (isinstance(part, Text) and _ANNOUNCES.fullmatch(part.text))
        ]
        if message.role == "tool" or (said and all(isinstance(part, ToolResult) for part in said)):
            return None
        if message.role == "assistant":
            return newest
        if message.role == "user":
            newest = index if newest is None else newest
            if said:
                return newest
    return newest


class BaseTask(Struct, frozen=True):
    """Attributes of every task: the kind of model it needs, its name in errors, and what is prepared for it."""

    # Those of tasks of tokenizers.
    model_kind: ClassVar[ModelKind] = "language"
    verb: ClassVar[str] = "show its tokens"  # after "The model can't"

    def parts(self) -> Iterable[Part]:
        """The texts that a tokenizer reads for the task, and the media that are prepared."""
        return ()

    def text_length(self) -> int:
        """Characters of text that a tokenizer reads for the task."""
        return _length_of(self.parts())

    def prepares_slowly(self) -> bool:
        """Whether the task has a video or a document to read, which takes up to a minute."""
        return any(isinstance(part, Video | Document) for part in media_of(self.parts()))


class RequestTask(BaseTask, frozen=True):
    """A task that reads the prompt of a request."""

    request: GenerationRequest

    def parts(self) -> Iterator[Part]:
        request = self.request
        if isinstance(request.prompt, str):
            yield Text(request.prompt)
        yield Text(request.suffix or "")
        for asked in request.decisions:
            yield from map(Text, (asked.question, *asked.labels))
        for message in request.messages or ():
            yield from message.parts


class CountTokens(RequestTask, frozen=True, tag=True):
    """Counts the prompt tokens that a request would have."""


class RenderTemplate(RequestTask, frozen=True, tag=True):
    """Renders a request with the chat template, without running it."""


class Tokenize(BaseTask, frozen=True, tag=True, omit_defaults=True):
    text: str
    add_special_tokens: bool = True
    with_pieces: bool = False

    def parts(self) -> tuple[Text]:
        return (Text(self.text),)


class Detokenize(BaseTask, frozen=True, tag=True):
    tokens: tuple[int, ...]


class Conversation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One input to embed as a single vector: messages, with or without media, rendered by the model's chat template."""

    messages: tuple[Message, ...]
    continues: bool = False  # the last message is the assistant's, and its turn stays open
    field: str | None = None  # the input's field in refusals; None where the request itself has messages


class Embed(BaseTask, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    model_kind = "embeddings"
    verb = "embed texts"

    inputs: tuple[str | tuple[int, ...] | Conversation, ...] = ()
    dimensions: int | None = None
    overflow: Literal["error", "truncate"] | None = None
    instruction: str | None = None
    purposes: tuple[str, ...] = ()  # names of a prompt of the model's own, which counts where it has one

    def parts(self) -> Iterator[Part]:
        for each in self.inputs:
            if isinstance(each, str):
                yield Text(each)
            elif isinstance(each, Conversation):
                yield from (part for message in each.messages for part in message.parts)


class RerankDocument(Struct, frozen=True, omit_defaults=True):
    parts: tuple[Text | Image | Video, ...]


class Rerank(BaseTask, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Score each document against the query (`/v1/rerank`)."""

    model_kind = "reranking"
    verb = "rank texts"

    query: str
    query_media: tuple[Image | Video, ...] = ()  # placed before the query's text
    documents: tuple[RerankDocument, ...]
    instruction: str | None = None
    overflow: Literal["error", "truncate"] | None = None

    def parts(self) -> Iterator[Part]:
        for document in self.documents:
            yield from (Text(self.query), *document.parts)


class Decide(BaseTask, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Answer questions about a state by the model's own scoring (`/v1/decisions`)."""

    model_kind = "decisions"
    verb = "decide"

    state: str  # JSON: a text, an object or a list
    questions: str  # JSON: an object of questions by name, in mlx-vlm's form


class Transcribe(BaseTask, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    model_kind = "transcription"
    verb = "transcribe sound"

    audio: bytes
    filename: str | None = None
    translate: bool = False
    language: str | None = None
    prompt: str | None = None
    temperature: float | None = None
    words: bool = False
    stream: bool = False
    max_tokens: int | None = None


FileFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
"""The formats of speech; `pcm` is 16 bits, little-endian."""


class Speak(BaseTask, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    model_kind = "speech"
    verb = "speak"

    text: str
    voice: str | None = None
    speed: float = 1.0
    format: FileFormat = "mp3"
    instructions: str | None = None
    language: str | None = None
    reference_audio: bytes | None = None
    reference_text: str | None = None
    gender: str | None = None
    pitch: float | None = None  # 1 is the voice's natural pitch
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    stream: bool = False
    streaming_interval: float | None = None  # seconds of sound per chunk
    seed: int | None = None

    def parts(self) -> tuple[Text]:
        return (Text(self.text),)


class ListVoices(BaseTask, frozen=True, tag=True):
    model_kind = "speech"
    verb = "speak"


class GenerateImages(BaseTask, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Draw `n` pictures; with `images`, edit them."""

    model_kind = "images"
    verb = "make pictures"

    prompt: str
    n: int = 1
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    guidance: float | None = None
    seed: int | None = None
    negative_prompt: str | None = None
    images: tuple[bytes, ...] = ()
    strength: float | None = None
    format: Literal["png", "jpeg", "webp"] = "png"
    quality: int | None = None  # of jpeg and webp, 0 to 100
    effort: Literal["low", "medium", "high"] | None = None  # scales the model's own number of steps


class Generate(RequestTask, frozen=True, tag=True):
    verb = "generate text"


Task = (
    Generate
    | CountTokens
    | RenderTemplate
    | Tokenize
    | Detokenize
    | Embed
    | Rerank
    | Decide
    | Transcribe
    | Speak
    | ListVoices
    | GenerateImages
)


def _length_of(parts: Iterable[Part]) -> int:
    """Characters of text in these parts."""
    length = 0
    for part in parts:
        match part:
            case Text(text) | Reasoning(text):
                length += len(text)
            case ToolCall(arguments=arguments):
                length += len(arguments)
            case ToolResult(parts=inner):
                length += _length_of(inner)
    return length

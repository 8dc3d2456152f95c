"""Tasks for models and tokenizers, generation among them."""

from typing import ClassVar, Literal

from msgspec import Struct

from pippin.core.conversation import Image, Message, Text, Video
from pippin.core.models import ModelKind
from pippin.core.requests import GenerationRequest


class BaseTask(Struct, frozen=True):
    """Attributes of every task: the kind of model it needs, and its name in errors."""

    # None for tasks of tokenizers: many kinds of model have one.
    model_kind: ClassVar[ModelKind | None] = None
    verb: ClassVar[str] = "do this"  # after "The model can't"


class CountTokens(BaseTask, frozen=True, tag=True):
    """Counts the prompt tokens that a request would have."""

    request: GenerationRequest


class RenderTemplate(BaseTask, frozen=True, tag=True):
    """Renders a request with the chat template, without running it."""

    request: GenerationRequest


class Tokenize(BaseTask, frozen=True, tag=True, omit_defaults=True):
    text: str
    add_special_tokens: bool = True
    with_pieces: bool = False


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


class RerankDocument(Struct, frozen=True, omit_defaults=True):
    parts: tuple[Text | Image | Video, ...]
    query: str | None = None  # overrides the request's query (`/v1/score` compares pairs)


class Rerank(BaseTask, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Score each document against the query (`/v1/rerank`, `/v1/score`)."""

    model_kind = "reranking"
    verb = "rank texts"

    query: str
    query_media: tuple[Image | Video, ...] = ()  # placed before the query's text
    documents: tuple[RerankDocument, ...]
    instruction: str | None = None
    raw_scores: bool = False
    overflow: Literal["error", "truncate"] | None = None


class Question(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One question to decide: which one label, a level on a scale, true or false, or which set of labels."""

    name: str
    kind: Literal["choice", "score", "bool", "noul", "multi_label"] = "choice"
    instructions: str
    # Labels or levels, or what each label means.
    criteria: tuple[str, ...] | dict[str, str | None] | None = None
    threshold: float | None = None


class Decide(BaseTask, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Answer questions about a state by the model's own scoring (`/v1/decisions`)."""

    model_kind = "decisions"
    verb = "decide"

    state: str  # JSON: a text, an object or a list
    questions: tuple[Question, ...]


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
"""The formats of `/v1/audio/speech`."""

SpeechFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm", "pcmu", "pcma"]
"""`pcm` is 16 bits, little-endian; `pcmu` and `pcma` are G.711's u-law and A-law, 8000 bytes a second."""


class Speak(BaseTask, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    model_kind = "speech"
    verb = "speak"

    text: str
    voice: str | None = None
    speed: float = 1.0
    format: SpeechFormat = "mp3"
    rate: int | None = None  # samples a second of `pcm`; None: the model's own rate
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


class Generate(BaseTask, frozen=True, tag=True):
    model_kind = "language"
    verb = "generate text"

    request: GenerationRequest


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

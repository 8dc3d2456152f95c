"""What a client asks of models other than generation, and of tokenizers."""

from typing import ClassVar, Literal

from msgspec import Struct

from pippin.core.conversation import Image, Message, Text, Video
from pippin.core.models import ModelKind
from pippin.core.requests import GenerationRequest


class BaseTask(Struct, frozen=True):
    """What each task says of itself: who can do it, and what doing it is called."""

    model_kind: ClassVar[ModelKind | None] = (
        None  # None for tasks of tokenizers: many kinds of model have one
    )
    verb: ClassVar[str] = "do this"  # after "The model can't"


class CountTokens(BaseTask, frozen=True, tag=True):
    """How many prompt tokens would this request have?"""

    request: GenerationRequest


class RenderTemplate(BaseTask, frozen=True, tag=True):
    """Asks for the prompt that the chat template makes of a request."""

    request: GenerationRequest


class Tokenize(BaseTask, frozen=True, tag=True, omit_defaults=True):
    text: str
    add_special_tokens: bool = True
    with_pieces: bool = False


class Detokenize(BaseTask, frozen=True, tag=True):
    tokens: tuple[int, ...]


class Conversation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is embedded as one vector: messages as the model's chat template writes them, with media or without."""

    messages: tuple[Message, ...]
    continues: bool = False  # the last message is the assistant's, and is not ended
    field: str | None = None  # of the request, by which refusals name it; None where that has messages itself


class Embed(BaseTask, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    model_kind = "embeddings"
    verb = "embed texts"

    inputs: tuple[str | tuple[int, ...] | Conversation, ...] = ()
    dimensions: int | None = None
    overflow: Literal["error", "truncate"] | None = None
    instruction: str | None = None


class RerankDocument(Struct, frozen=True, omit_defaults=True):
    parts: tuple[Text | Image | Video, ...]
    query: str | None = None  # its own, in place of the request's (`/v1/score` compares pairs)


class Rerank(BaseTask, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Score each document against the query (`/v1/rerank`, `/v1/score`)."""

    model_kind = "reranking"
    verb = "rank texts"

    query: str
    query_media: tuple[Image | Video, ...] = ()  # before its text
    documents: tuple[RerankDocument, ...]
    instruction: str | None = None
    raw_scores: bool = False
    overflow: Literal["error", "truncate"] | None = None


class Question(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is to be decided: one of some labels, how far on a scale, whether something holds, or which labels do."""

    name: str
    kind: Literal["choice", "score", "bool", "noul", "multi_label"] = "choice"
    instructions: str
    criteria: tuple[str, ...] | dict[str, str | None] | None = (
        None  # labels or levels, or what each label means
    )
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
    rate: int | None = None  # samples a second of `pcm`; not set: as the model makes them
    instructions: str | None = None
    language: str | None = None
    reference_audio: bytes | None = None
    reference_text: str | None = None
    gender: str | None = None
    pitch: float | None = None  # 1 is the voice's own
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    stream: bool = False
    streaming_interval: float | None = None  # seconds of sound in a piece
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
    mask: bytes | None = None
    strength: float | None = None
    format: Literal["png", "jpeg", "webp"] = "png"
    quality: int | None = None  # of jpeg and webp, 0 to 100
    effort: Literal["low", "medium", "high"] | None = None  # steps, relative to the model's own number
    partial_images: int = 0


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

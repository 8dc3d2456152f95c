"""What a client asks of models other than generation, and of tokenizers."""

from typing import Literal

from msgspec import Struct

from pippin.core.conversation import Image, Text
from pippin.core.requests import GenerationRequest


class CountTokens(Struct, frozen=True, tag=True):
    """How many prompt tokens would this request have?"""

    request: GenerationRequest


class RenderTemplate(Struct, frozen=True, tag=True):
    """Asks for the prompt that the chat template makes of a request."""

    request: GenerationRequest


class Tokenize(Struct, frozen=True, tag=True, omit_defaults=True):
    text: str
    add_special_tokens: bool = True
    with_pieces: bool = False


class Detokenize(Struct, frozen=True, tag=True):
    tokens: tuple[int, ...]


class Embed(Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    inputs: tuple[str | tuple[int, ...], ...] = ()
    content: tuple[tuple[Text | Image, ...], ...] = ()  # multimodal inputs, instead of `inputs`
    dimensions: int | None = None
    overflow: Literal["error", "truncate"] | None = None
    instruction: str | None = None


class RerankDocument(Struct, frozen=True, omit_defaults=True):
    parts: tuple[Text | Image, ...]
    query: str | None = None  # its own, in place of the request's (`/v1/score` compares pairs)


class Rerank(Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Score each document against the query (`/v1/rerank`, `/v1/score`)."""

    query: str
    documents: tuple[RerankDocument, ...]
    instruction: str | None = None
    raw_scores: bool = False
    overflow: Literal["error", "truncate"] | None = None


class Transcribe(Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    audio: bytes
    filename: str | None = None
    translate: bool = False
    language: str | None = None
    prompt: str | None = None
    temperature: float | None = None
    words: bool = False
    stream: bool = False
    max_tokens: int | None = None


class Speak(Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    text: str
    voice: str | None = None
    speed: float = 1.0
    format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    instructions: str | None = None
    language: str | None = None
    reference_audio: bytes | None = None
    reference_text: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    stream: bool = False
    seed: int | None = None


class ListVoices(Struct, frozen=True, tag=True):
    pass


class GenerateImages(Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Draw `n` pictures; with `images`, edit them."""

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


class Generate(Struct, frozen=True, tag=True):
    request: GenerationRequest


Task = (
    Generate
    | CountTokens
    | RenderTemplate
    | Tokenize
    | Detokenize
    | Embed
    | Rerank
    | Transcribe
    | Speak
    | ListVoices
    | GenerateImages
)

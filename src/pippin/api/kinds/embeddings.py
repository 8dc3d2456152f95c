"""`/v1/embeddings`, in OpenAI's form; pictures in the forms of Jina, mlx-vlm and vLLM."""

import base64
import struct
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import Endpoint
from pippin.api.dialects.chat.dialect import ChatMessages, UserMessage, messages_of
from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import Contract, about, invalid, several, unsupported, without_effect
from pippin.api.dialects.shared.media import (
    MAX_URL,
    PATH,
    Content,
    GivenUrl,
    image_of,
    source_of_base64,
    source_of_url,
)
from pippin.api.routing import Api, both
from pippin.core.conversation import Image, MediaSource, Message, Part, Text, Video
from pippin.core.events import Embedded
from pippin.core.tasks import Conversation, Embed

MOST_INPUTS: Final = 2048
"""OpenAI's limit."""

TokenId = Annotated[int, Meta(ge=0, lt=2**48)]


class MediaObject(Struct, kw_only=True, omit_defaults=True):
    """A text, a picture or a clip, under Jina's and mlx-vlm's names; several of them form one input."""

    text: str | None = None
    image: str | GivenUrl | None = None
    image_url: str | GivenUrl | None = None
    video: str | GivenUrl | None = None
    video_url: str | GivenUrl | None = None


class InputObject(MediaObject, kw_only=True, omit_defaults=True):
    """One input that is not a string; `content` holds parts of Chat Completions instead of the other fields."""

    type: str | None = None
    url: str | None = None  # of a picture
    content: Content = None


class EmbeddingRequest(Struct, kw_only=True, omit_defaults=True):
    input: Annotated[
        str | InputObject | tuple[str | TokenId | tuple[TokenId, ...] | InputObject, ...] | None,
        about(
            "Text, texts, token ids, lists of token ids, or objects with a text, a picture or a clip.",
            extra_json_schema={"minLength": 1, "minItems": 1},
        ),
    ] = None
    messages: Annotated[
        ChatMessages | None,
        about("In place of `input`: a conversation, which becomes one vector (vLLM's form)."),
    ] = None
    add_generation_prompt: Annotated[
        bool | None, about("Of `messages`: only true, unless the last message is continued.")
    ] = None
    continue_final_message: Annotated[
        bool | None, about("The last of `messages` is the assistant's, and is not ended.")
    ] = None
    model: Annotated[Name, about("Name of the model.")] = "default"
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        about("Numbers, or base64 of little-endian float32."),
    ] = None
    dimensions: Annotated[
        Annotated[int, Meta(ge=1, le=2**20)] | None,
        about("Keep the first so many values of each vector, normalised again."),
    ] = None
    truncate: Annotated[
        bool | None,
        about("Cut inputs that are too long, or refuse them; not set is the option's choice."),
    ] = None
    instruction: Annotated[
        str | None,
        about("Text in front of each input, or the name of one of the model's own prompts."),
    ] = None


CONTRACT: Final = Contract(EmbeddingRequest, *without_effect(__name__, "embeddings"))
CONTRACTS: Final = {"POST /v1/embeddings": CONTRACT}


class EmbeddingItem(Struct, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class TextUsage(Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingReply(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: TextUsage


def task_of(fields: EmbeddingRequest) -> Embed:
    for name, usual in (("add_generation_prompt", True), ("continue_final_message", False)):
        if fields.messages is None and getattr(fields, name) not in (None, usual):
            raise invalid(name, "goes with `messages`; a text is not a conversation.")
    return Embed(
        inputs=conversation_of(fields)
        if fields.messages is not None
        else inputs_of(fields.input, fields.instruction),
        dimensions=fields.dimensions,
        overflow=overflow_of(fields.truncate),
        instruction=fields.instruction or None,
    )


def overflow_of(truncate: bool | None) -> Literal["error", "truncate"] | None:
    return None if truncate is None else "truncate" if truncate else "error"


def conversation_of(fields: EmbeddingRequest) -> tuple[Conversation]:
    """The single input of a request with `messages`. Raises `ServerError` naming a field that contradicts it."""
    if fields.input is not None:
        raise invalid("messages", "stand in place of `input`; leave one of them out.")
    if fields.instruction:
        raise invalid("instruction", "goes with `input`; with `messages`, send a system message.")
    if fields.truncate:
        raise invalid("truncate", "cuts texts; `messages` are never cut.")
    continues = fields.continue_final_message is True
    if not continues and fields.add_generation_prompt is False:
        raise unsupported(
            "add_generation_prompt",
            "prompts end where an answer would begin, as these models were trained; leave it out.",
        )
    return (Conversation(messages=messages_of(fields.messages or ()), continues=continues),)


Input = str | tuple[int, ...] | Conversation


def inputs_of(given: Any, instruction: str | None = None) -> tuple[Input, ...]:
    """The inputs of a request, one for each vector. A list of numbers is a single input."""
    if given is None:
        raise invalid("input", "is required.")
    found: list[Input] = []
    for place, item in enumerate(several(given, "input", MOST_INPUTS)):
        at = f"input[{place}]"
        match item:
            case InputObject() if item.content is not None:
                [message] = messages_of((UserMessage(content=item.content),))
                found.append(_asked(message.parts, at, instruction))
            case InputObject():
                # A user's message with its media, or plain text if it has nothing else.
                parts = object_parts(item, at)
                is_text = len(parts) == 1 and isinstance(parts[0], Text)
                found.append(item.text if item.text and is_text else _asked(parts, at, instruction))
            case str() if item.startswith("data:image/"):
                found.append(_asked((image_of(item, None, at),), at, instruction))
            case _:
                found.append(item)
    return tuple(found)


def object_parts(item: MediaObject, at: str) -> tuple[Text | Image | Video, ...]:
    """The clip, the picture and the text of an object, in this order. Raises `ServerError` if it has none of them.

    A picture is a URL, a `data:` URL, or bare base64, as Jina accepts it.
    """
    clips = {"video": item.video, "video_url": item.video_url}
    pictures = {"image": item.image, "image_url": item.image_url}
    if isinstance(item, InputObject):
        pictures["url"] = item.url
    parts: list[Text | Image | Video] = []
    parts += (Video(media_source(each, f"{at}.{name}")) for name, each in clips.items() if each is not None)
    parts += (
        Image(media_source(each, f"{at}.{name}")) for name, each in pictures.items() if each is not None
    )
    if item.text:
        parts.append(Text(item.text))
    if not parts:
        raise invalid(at, "must be a text, or an object with a `text`, an `image` or a `video`.")
    return tuple(parts)


def media_source(given: str | GivenUrl, at: str) -> MediaSource:
    """The source at a URL, or the bytes of bare base64."""
    text = given if isinstance(given, str) else given.url
    if ":" in text[:16] or (len(text) <= MAX_URL and PATH.fullmatch(text)):
        return source_of_url(text, at)
    return source_of_base64(text, at)


def _asked(parts: tuple[Part, ...], at: str, instruction: str | None) -> Conversation:
    system = (Message("system", (Text(instruction),)),) if instruction else ()
    return Conversation(messages=(*system, Message("user", parts)), field=at)


def rows_of(found: Embedded) -> list[bytes]:
    """The vectors, each as the bytes of little-endian float32."""
    width = found.dimensions * 4
    return [found.vectors[start : start + width] for start in range(0, len(found.vectors), width)]


def vectors_of(found: Embedded) -> list[list[float]]:
    return [list(struct.unpack(f"<{found.dimensions}f", row)) for row in rows_of(found)]


def draw(fields: EmbeddingRequest, model: str, found: Embedded) -> bytes:
    usage = TextUsage(prompt_tokens=found.used_tokens, total_tokens=found.used_tokens)
    # One vector at a time: encoding millions of numbers in one call would hold the GIL too long.
    items = [
        msgspec.Raw(
            msgspec.json.encode(
                EmbeddingItem(
                    index=index,
                    embedding=base64.b64encode(row).decode()
                    if fields.encoding_format == "base64"
                    else list(struct.unpack(f"<{found.dimensions}f", row)),
                )
            )
        )
        for index, row in enumerate(rows_of(found))
    ]
    return msgspec.json.encode({"object": "list", "data": items, "model": model, "usage": usage})


def embedding(api: Api) -> Endpoint:
    """The endpoint that answers OpenAI's embedding requests."""

    async def embed(request: Request) -> Response:
        """Vectors of texts, pictures and conversations"""
        fields = await api.handler.fields_of(request, "embeddings", CONTRACT.decode)
        task = await api.handler.media.resolve_embed(task_of(fields))
        found, _ = await api.handler.task(request, task, Embedded, model=fields.model, operation="embeddings")
        name = (await api.service.names.find(fields.model, task.model_kind)).id
        drawn = await api.handler.large.do(len(found.vectors), draw, fields, name, found)
        return Response(drawn, media_type="application/json")

    return embed


def routes(api: Api) -> list[BaseRoute]:
    return list(both("/embeddings", embedding(api), "POST", body=EmbeddingRequest, answer=EmbeddingReply))

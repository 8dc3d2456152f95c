"""The items of a conversation: their form on the wire, and as messages for the model."""

from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from pippin.api.dialects.shared.fields import invalid
from pippin.api.dialects.shared.media import decoded_base64, image_of
from pippin.core.conversation import Audio, Image, Inline, Message, Part, Text, ToolCall, ToolResult

MOST_CONTENT: Final = 256
"""The most parts of one message."""

ItemId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Status = Literal["completed", "incomplete", "in_progress"]
ContentType = Literal["input_text", "input_audio", "input_image", "output_text", "output_audio"]


class Content(Struct, kw_only=True):
    """A part of a message. `audio` is base64 and is never sent back."""

    type: ContentType
    text: str | UnsetType | None = UNSET
    audio: str | UnsetType | None = UNSET
    transcript: str | UnsetType | None = UNSET
    image_url: str | UnsetType | None = UNSET
    detail: Literal["auto", "low", "high"] | UnsetType | None = UNSET


class BaseItem(Struct, kw_only=True):
    id: ItemId | UnsetType | None = UNSET
    object: Literal["realtime.item"] | UnsetType | None = UNSET
    status: Status | UnsetType | None = UNSET


class MessageItem(BaseItem, tag_field="type", tag="message", kw_only=True):
    role: Literal["system", "user", "assistant"]
    content: Annotated[list[Content], Meta(max_length=MOST_CONTENT)]


class CallItem(BaseItem, tag_field="type", tag="function_call", kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    call_id: Annotated[str, Meta(min_length=1, max_length=256)] | UnsetType | None = UNSET
    arguments: str


class OutputItem(BaseItem, tag_field="type", tag="function_call_output", kw_only=True):
    call_id: Annotated[str, Meta(min_length=1, max_length=256)]
    output: str


Item = MessageItem | CallItem | OutputItem

ALLOWED: Final[dict[str, tuple[ContentType, ...]]] = {
    "system": ("input_text",),
    "user": ("input_text", "input_audio", "input_image"),
    "assistant": ("output_text", "output_audio"),
}


def check_content(item: MessageItem, path: str) -> None:
    """Raises `ServerError` for content that the role can't have, or that is empty."""
    for number, part in enumerate(item.content):
        place = f"{path}.content[{number}]"
        allowed = ALLOWED[item.role]
        if part.type not in allowed:
            raise invalid(f"{place}.type", f"must be {' or '.join(allowed)} in a message of {item.role!r}.")
        needed = {
            "input_text": "text",
            "output_text": "text",
            "input_image": "image_url",
            "output_audio": "transcript",
            "input_audio": "audio",
        }[part.type]
        if not isinstance(getattr(part, needed), str):
            raise invalid(f"{place}.{needed}", "is required.")
        if part.type == "input_image":
            image_of(str(part.image_url), part.detail or None, f"{place}.image_url")


def sound_given(item: MessageItem, path: str) -> bytes | None:
    """Remove and return the recording in a message. Raises `ServerError`."""
    sounds = [(number, part) for number, part in enumerate(item.content) if part.type == "input_audio"]
    if not sounds:
        return None
    if len(sounds) > 1:
        raise invalid(f"{path}.content", "must hold one `input_audio` at most; send the others as items.")
    [(number, part)] = sounds
    try:
        data = decoded_base64(str(part.audio))
    except ValueError:
        raise invalid(f"{path}.content[{number}].audio", "must be valid base64.") from None
    part.audio = UNSET
    part.transcript = part.transcript or None
    return data


def messages_of(
    instructions: str, items: Iterable[Item], hearings: "dict[str, Inline]"
) -> tuple[Message, ...]:
    """The messages for the model. `hearings` are the recordings that the model itself hears, by item id."""
    messages = [Message("system", (Text(instructions),))] if instructions else []
    turn: list[Part] = []
    names: dict[str, str] = {}

    def end_turn() -> None:
        if turn:
            messages.append(Message("assistant", tuple(turn)))
            turn.clear()

    for item in items:
        match item:
            case MessageItem(role="assistant"):
                turn.extend(Text(said) for part in item.content if (said := said_in(part)))
            case CallItem():
                names[str(item.call_id)] = item.name
                turn.append(ToolCall(str(item.call_id), item.name, item.arguments))
            case MessageItem():
                end_turn()
                if parts := _parts(item, hearings):
                    messages.append(Message(item.role, parts))
            case OutputItem():
                end_turn()
                result = ToolResult(item.call_id, (Text(item.output),), names.get(item.call_id))
                messages.append(Message("tool", (result,)))
    end_turn()
    return tuple(messages)


def said_in(part: Content) -> str:
    return part.text or part.transcript or ""


def _parts(item: MessageItem, hearings: "dict[str, Inline]") -> tuple[Part, ...]:
    parts: list[Part] = []
    for part in item.content:
        match part.type:
            case "input_image":
                parts.append(_image(part))
            case "input_audio" if (heard := hearings.get(str(item.id))) is not None:
                parts.append(Audio(heard, "wav"))
            case _ if said := said_in(part):
                parts.append(Text(said))
    return tuple(parts)


def _image(part: Content) -> Image:
    return image_of(str(part.image_url), part.detail or None, "item.content.image_url")


def size_of(item: Item) -> int:
    """The approximate size of an item in bytes."""
    return len(msgspec.json.encode(item)) + 512


def completed(item: Item, id: str) -> Item:
    """An item that a client sent, with the omitted fields filled in."""
    item.id = id
    item.object = "realtime.item"
    item.status = item.status or "completed"
    if isinstance(item, CallItem) and not item.call_id:
        item.call_id = f"call_{id[-24:]}"
    return item

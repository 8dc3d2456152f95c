"""The conversation of a connection: its items in order, within bounds, the sound kept with them, and the messages
that a model gets of them."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from pippin.api.dialects.shared.fields import invalid
from pippin.api.dialects.shared.media import decoded_base64, image_of
from pippin.api.sockets.realtime.input_sound import Recording
from pippin.core.conversation import Audio, Image, Inline, Message, Part, Text, ToolCall, ToolResult
from pippin.core.errors import ServerError

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


MOST_ITEMS: Final = 4096

ROOT: Final = "root"
"""The `previous_item_id` that puts an item before all others."""


@dataclass(slots=True)
class Entry:
    """An item, and state of it that clients are not shown."""

    item: Item
    recording: Recording | None = None
    transcribing: asyncio.Task[None] | None = None
    failure: ServerError | None = None  # why its recording has no transcript
    held: int = 0  # bytes counted for it

    @property
    def id(self) -> str:
        return str(self.item.id)


class Conversation:
    """The items, in order. `hold` and `release` count their bytes."""

    def __init__(self, hold: Callable[[int], bool], release: Callable[[int], None]) -> None:
        self._hold = hold
        self._release = release
        self._entries: list[Entry] = []

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def last_id(self) -> str | None:
        return self._entries[-1].id if self._entries else None

    def find(self, id: str) -> Entry:
        """Raises `ServerError` if there is no such item."""
        for entry in self._entries:
            if entry.id == id:
                return entry
        raise ServerError(
            "not_found",
            f"There is no item {id[:64]!r} in the conversation.",
            "item_id",
            code="item_not_found",
        )

    def has(self, id: str) -> bool:
        return any(entry.id == id for entry in self._entries)

    def add(self, entry: Entry, after: str | None = None) -> str | None:
        """Insert an item after another one, or at the end. Returns the preceding item's id. Raises `ServerError`."""
        if self.has(entry.id):
            raise invalid("item.id", f"is that of another item: {entry.id!r}.")
        if len(self._entries) >= MOST_ITEMS:
            raise full(f"{MOST_ITEMS} items")
        place = len(self._entries) if after is None else self._place_after(after)
        size = bytes_of(entry)
        if not self._hold(size):
            raise full("as many bytes as the server has room for")
        entry.held = size
        self._entries.insert(place, entry)
        return self._entries[place - 1].id if place else None

    def delete(self, id: str) -> None:
        entry = self.find(id)
        self._entries.remove(entry)
        self._release(entry.held)
        if entry.transcribing is not None:
            entry.transcribing.cancel()

    def drop_recording(self, entry: Entry) -> None:
        """Drop the sound of a message that was transcribed."""
        if entry.recording is not None:
            size = min(len(entry.recording.data), entry.held)
            entry.recording = None
            if self.has(entry.id):
                entry.held -= size
                self._release(size)

    def before(self, id: str) -> str | None:
        """The id of the item before this one."""
        place = self._entries.index(self.find(id))
        return self._entries[place - 1].id if place else None

    def grown(self, entry: Entry) -> None:
        """Count the bytes of an item again when its text is complete, if there is room."""
        more = size_of(entry.item) - entry.held
        if more > 0 and self.has(entry.id) and self._hold(more):
            entry.held += more

    def calls(self, call_id: str) -> bool:
        """Whether there is a function call with this id."""
        return any(isinstance(each.item, CallItem) and each.item.call_id == call_id for each in self._entries)

    def _place_after(self, id: str) -> int:
        if id == ROOT:
            return 0
        try:
            return self._entries.index(self.find(id)) + 1
        except ServerError as error:
            raise ServerError(
                "not_found", error.report.message, "previous_item_id", code="item_not_found"
            ) from None


def bytes_of(entry: Entry) -> int:
    """The approximate size of an item with its recording."""
    return size_of(entry.item) + (len(entry.recording.data) if entry.recording else 0)


def full(bound: str) -> ServerError:
    return ServerError(
        "too_large",
        f"The conversation holds {bound}; delete items, or open another connection.",
        code="conversation_full",
    )


def user_sound(id: str) -> MessageItem:
    """The item for a recording that the client committed."""
    content = Content(type="input_audio", transcript=None)
    return MessageItem(id=id, object="realtime.item", status="completed", role="user", content=[content])

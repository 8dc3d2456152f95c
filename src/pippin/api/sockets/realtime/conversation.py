"""The conversation of a connection: its items in order, within bounds, and the sound kept with them."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from pippin.api.dialects.shared.fields import invalid
from pippin.api.sockets.realtime.input_sound import Recording
from pippin.api.sockets.realtime.items import CallItem, Content, Item, MessageItem, size_of
from pippin.core.errors import ServerError

MOST_ITEMS: Final = 4096

ROOT: Final = "root"
"""The `previous_item_id` that puts an item before all others."""


@dataclass(frozen=True, slots=True)
class SpokenText:
    """A piece of a spoken answer; times in milliseconds from the start of the answer's sound."""

    text: str
    start: float
    end: float


@dataclass(slots=True)
class Entry:
    """An item, and state of it that clients are not shown."""

    item: Item
    recording: Recording | None = None
    transcribing: asyncio.Task[None] | None = None
    spoken: list[SpokenText] = field(default_factory=list)
    failure: ServerError | None = None  # why its recording has no transcript
    held: int = 0  # bytes counted for it

    @property
    def id(self) -> str:
        return str(self.item.id)

    @property
    def milliseconds(self) -> int:
        """The duration of a spoken answer."""
        return int(self.spoken[-1].end) if self.spoken else 0


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

    def truncate(self, id: str, content: int, milliseconds: int) -> None:
        """Drop the sound after `milliseconds`, and the text spoken in it. Raises `ServerError`."""
        entry = self.find(id)
        parts = entry.item.content if isinstance(entry.item, MessageItem) else []
        if not (0 <= content < len(parts)) or parts[content].type != "output_audio":
            raise invalid("content_index", "must be that of sound in a message of the assistant.")
        if milliseconds > entry.milliseconds:
            raise invalid(
                "audio_end_ms", f"is {milliseconds}, but the sound ends after {entry.milliseconds} ms."
            )
        entry.spoken = list(_cut(entry.spoken, milliseconds))
        parts[content].transcript = "".join(piece.text for piece in entry.spoken)

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


def _cut(pieces: list[SpokenText], milliseconds: int) -> Iterator[SpokenText]:
    """The part of an answer that was heard. The piece where it broke off keeps its share of whole words."""
    for piece in pieces:
        if piece.end <= milliseconds:
            yield piece
        elif piece.start < milliseconds:
            share = (milliseconds - piece.start) / (piece.end - piece.start)
            heard = piece.text[: int(len(piece.text) * share)]
            whole = heard if piece.text[len(heard) : len(heard) + 1].isspace() else heard.rpartition(" ")[0]
            yield SpokenText(whole, piece.start, milliseconds)


def user_sound(id: str, transcript: str | None = None) -> MessageItem:
    """The item for a recording that the client committed."""
    content = Content(type="input_audio", transcript=transcript)
    return MessageItem(id=id, object="realtime.item", status="completed", role="user", content=[content])

"""Keeps responses and conversations for later turns: bounded in entries, bytes and age, separate for each API key.

They are kept in SQLite, in a file if the operator names one, else in memory: an entry for each response or
conversation, and a row for each item, so that a page of items is read without the others. Calls may block on a disk:
make them on a thread.
"""

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import psutil
from msgspec import Meta, Struct, field

from pippin.api.dialects.base import History
from pippin.api.dialects.shared.fields import validation_error
from pippin.api.http.body import decoded_bytes
from pippin.api.sqlite import Schema, open_file, open_memory
from pippin.config.options.server import ServerOptions
from pippin.core.decoding import convert, from_json
from pippin.core.errors import ServerError

log = logging.getLogger(__name__)

Item = dict[str, Any]
Kind = Literal["response", "conversation"]

TABLES: Final = """
CREATE TABLE IF NOT EXISTS entries (
    key INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, id TEXT NOT NULL, kind TEXT NOT NULL,
    created REAL NOT NULL, used REAL NOT NULL, bytes INTEGER NOT NULL, previous TEXT, body BLOB NOT NULL,
    UNIQUE (owner, id)
);
CREATE INDEX IF NOT EXISTS entries_used ON entries (used);
CREATE INDEX IF NOT EXISTS entries_bytes ON entries (owner, bytes, created);
CREATE TABLE IF NOT EXISTS items (
    entry INTEGER NOT NULL, place INTEGER NOT NULL, owner TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS items_place ON items (entry, place);
CREATE INDEX IF NOT EXISTS items_id ON items (owner, id);
CREATE TABLE IF NOT EXISTS running (
    owner TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, process INTEGER NOT NULL,
    PRIMARY KEY (owner, id)
);
"""
# A response that is stored again, for example when it has ended, keeps its time of creation.
_PUT: Final = """INSERT INTO entries (owner, id, kind, created, used, bytes, previous, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (owner, id) DO UPDATE SET kind = excluded.kind, used = excluded.used,
    bytes = excluded.bytes, previous = excluded.previous, body = excluded.body RETURNING key"""
_ROW: Final = "INSERT INTO items (entry, place, owner, id, body) VALUES (?, ?, ?, ?, ?)"

INPUT, OUTPUT, END = 1 << 40, 2 << 40, 3 << 40
"""Places of the first items of a turn's input and output; before them are the items of the conversation that it joined.
All places of a conversation are below `INPUT`."""
ROW_BYTES: Final = 96  # of a row and its places in two indices, beside texts
LARGEST_PAGE: Final = 100  # items


class StoredResponse(Struct, kw_only=True, omit_defaults=True):
    """One turn of a conversation. The turns before it are found through `previous`, or in `before`."""

    response: dict[str, Any]  # the response object
    input: list[Item] = field(default_factory=list)  # of this turn alone, with ids
    previous: str | None = None
    before: list[Item] | None = None  # the conversation's items when this turn began

    @property
    def items(self) -> list[Item]:
        """All items up to the end of this turn, if it goes on from no other."""
        return [*(self.before or ()), *self.input, *self.response["output"]]


class StoredConversation(Struct, kw_only=True):
    """A conversation in the form of OpenAI's Conversations API, without its items."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str] = field(default_factory=dict)


Row = tuple[int, str, bytes]
"""An item as it is stored: its place, its id and its body."""


class Entry(NamedTuple):
    """An entry as it was found."""

    key: int
    previous: str | None
    body: bytes


def bytes_of(owner: str, id: str, body: int) -> int:
    """What a row takes whose body has so many bytes: SQLite keeps owner and id in an index too."""
    return ROW_BYTES + 2 * len((owner + id).encode()) + body


def rows_of(items: Iterable[Item], first: int) -> Iterator[Row]:
    for place, item in enumerate(items, first):
        own = item.get("id")
        yield place, own if isinstance(own, str) else "", msgspec.json.encode(item)


class ResponseStore:
    """The responses and conversations of all callers. `for_owner` returns the view of one caller."""

    def __init__(self, options: ServerOptions, clock: Callable[[], float] = time.time) -> None:
        """Raises `ServerError` for a file that can't be opened."""
        self._entries = options.response_store_entries
        self._bytes = int(options.response_store_mb * 2**20)
        self._seconds = options.response_store_hours * 3600
        self._clock = clock
        file = options.response_store
        self.database = open_memory(SCHEMA) if file is None else open_file(Path(file), SCHEMA)

    def for_owner(self, owner: str, hold: Callable[[int], None] = lambda size: None) -> "OwnedHistory":
        """`hold` is told how many bytes items take before they are decoded, and may raise."""
        return OwnedHistory(self, owner, hold)

    def put(
        self, owner: str, id: str, kind: Kind, body: bytes, rows: Iterable[Row], previous: str | None = None
    ) -> None:
        """Write an entry and its items in place of those that it had, then make room. Raises `ServerError` if nothing
        can be written."""
        now = self._clock()
        size = bytes_of(owner, id, len(body))
        with self.database.transaction() as transaction:
            values = (owner, id, kind, now, now, size, previous, body)
            [key] = transaction.execute(_PUT, values).fetchone()
            transaction.execute("DELETE FROM items WHERE entry = ?", (key,))
            self.add(transaction, owner, key, rows)

    def add(self, transaction: sqlite3.Connection, owner: str, key: int, rows: Iterable[Row]) -> None:
        """Add items to an entry, then evict entries that are too old, and more until the bounds hold.

        The least recently used entry of the owner who holds most is evicted first: an owner who holds less than an
        equal share loses nothing to others. An entry that alone exceeds the bound is not kept.
        """
        size = 0
        for place, item, body in rows:
            transaction.execute(_ROW, (key, place, owner, item, body))
            size += bytes_of(owner, item, len(body))
        grown = "UPDATE entries SET bytes = bytes + ? WHERE key = ? RETURNING bytes"
        [size] = transaction.execute(grown, (size, key)).fetchone()
        if size > self._bytes or not self._entries:
            _remove(transaction, key)
        now = self._clock()
        query = "SELECT COUNT(*), COALESCE(SUM(bytes), 0), MIN(created) FROM entries"
        entries, size, oldest = transaction.execute(query).fetchone()
        too_old = oldest is not None and oldest < now - self._seconds
        if entries > self._entries or size > self._bytes or too_old:
            self._make_room(transaction, now)

    def find(self, owner: str, id: str, kind: Kind) -> Entry:
        """An entry, which counts as used now. It is found all the same if that can't be noted on a full disk. Raises
        `ServerError` if there is none."""
        now = self._clock()
        query = """SELECT key, previous, body FROM entries
            WHERE owner = ? AND id = ? AND kind = ? AND created >= ?"""
        found = self.database.rows(query, owner, id, kind, now - self._seconds)
        if not found:
            raise not_found(kind, id)
        [(key, previous, body)] = found
        with contextlib.suppress(ServerError):
            self.database.rows("UPDATE entries SET used = ? WHERE key = ?", now, key)
        return Entry(key, previous, bytes(body))

    def begins(self, owner: str, id: str, body: bytes) -> None:
        """Note that a response in the background begins, which this body asks for: a server that follows begins it
        again, unless it `ends`. A failure is only logged."""
        with contextlib.suppress(ServerError):
            self.database.rows(
                "INSERT OR REPLACE INTO running VALUES (?, ?, ?, ?)", owner, id, body, os.getpid()
            )

    def ends(self, owner: str, id: str) -> None:
        """A response has ended. A failure is only logged."""
        with contextlib.suppress(ServerError):
            self.database.rows("DELETE FROM running WHERE owner = ? AND id = ?", owner, id)

    def take_unfinished(self) -> list[tuple[str, str, bytes]]:
        """Owner, id and body of each response that a server which is gone has begun and not ended. They are this
        server's from now on. Raises `ServerError`."""
        with self.database.transaction() as transaction:
            found = transaction.execute("SELECT DISTINCT process FROM running").fetchall()
            gone = [each for each in found if each[0] == os.getpid() or not psutil.pid_exists(each[0])]
            query = "UPDATE running SET process = ? WHERE process = ? RETURNING owner, id, body"
            return [row for (each,) in gone for row in transaction.execute(query, (os.getpid(), each))]

    def _make_room(self, transaction: sqlite3.Connection, now: float) -> None:
        too_old = "SELECT key FROM entries WHERE created < ?"
        for (key,) in transaction.execute(too_old, (now - self._seconds,)).fetchall():
            _remove(transaction, key)
        query = "SELECT owner, COUNT(*), SUM(bytes) FROM entries GROUP BY owner"
        held = {owner: [entries, int(size)] for owner, entries, size in transaction.execute(query).fetchall()}
        for figure, bound in ((0, self._entries), (1, self._bytes)):
            while sum(each[figure] for each in held.values()) > bound:
                owner = max(held, key=lambda owner: held[owner][figure])
                query = "SELECT key, bytes FROM entries WHERE owner = ? ORDER BY used, created, id LIMIT 1"
                oldest, size = transaction.execute(query, (owner,)).fetchone()
                _remove(transaction, oldest)
                held[owner][0] -= 1
                held[owner][1] -= size


def _remove(transaction: sqlite3.Connection, key: int) -> None:
    transaction.execute("DELETE FROM entries WHERE key = ?", (key,))
    transaction.execute("DELETE FROM items WHERE entry = ?", (key,))


class OwnedHistory(History):
    """One caller's responses and conversations. Those of other callers are not found here."""

    def __init__(self, store: ResponseStore, owner: str, hold: Callable[[int], None]) -> None:
        self._store = store
        self._owner = owner
        self._hold = hold

    # Responses

    def keep(self, id: str, turn: StoredResponse) -> None:
        """Store a response and the turn that it ends; a failure is only logged."""
        head = msgspec.json.encode(turn.response | {"output": []})
        parts = ((turn.before or (), 0), (turn.input, INPUT), (turn.response["output"], OUTPUT))
        rows = [row for items, first in parts for row in rows_of(items, first)]
        with _answered_all_the_same("response", id):
            self._store.put(self._owner, id, "response", head, rows, turn.previous)

    def response(self, id: str) -> dict[str, Any]:
        """The response object; the items of its output are encoded."""
        entry = self._entry(id, "response")
        found: dict[str, Any] = from_json(entry.body)
        return found | {"output": [msgspec.Raw(body) for body in self._bodies(entry.key, OUTPUT, END)]}

    def items(self, response_id: str) -> list[Item]:
        """Every item of the conversation up to and including that response, oldest first."""
        return self._decoded([body for key in self._chain(response_id) for body in self._bodies(key, 0, END)])

    def input_page(self, response_id: str, query: Mapping[str, str]) -> dict[str, Any]:
        """A page of the model's input for a response: all earlier turns, and the input of its own turn."""
        return self._page(self._chain(response_id), query)

    # Conversations

    def save_conversation(self, conversation: StoredConversation, items: Iterable[Item] = ()) -> None:
        """Store a new conversation."""
        body = msgspec.json.encode(conversation)
        self._store.put(self._owner, conversation.id, "conversation", body, rows_of(items, 0))

    def head(self, id: str) -> StoredConversation:
        return from_json(self._entry(id, "conversation").body, StoredConversation)

    def change_metadata(self, id: str, metadata: dict[str, str]) -> StoredConversation:
        entry = self._entry(id, "conversation")
        changed = msgspec.structs.replace(from_json(entry.body, StoredConversation), metadata=metadata)
        body = msgspec.json.encode(changed)
        statement = "UPDATE entries SET body = ?, bytes = bytes + ? WHERE key = ?"
        self._store.database.rows(statement, body, len(body) - len(entry.body), entry.key)
        return changed

    def add_items(self, id: str, items: Iterable[Item], *, new: bool = False) -> None:
        """Add items to a conversation; if `new`, only those whose ids it does not have."""
        entry = self._entry(id, "conversation")
        with self._store.database.transaction() as transaction:
            query = "SELECT COALESCE(MAX(place), -1) FROM items WHERE entry = ?"
            [last] = transaction.execute(query, (entry.key,)).fetchone()
            known = "SELECT 1 FROM items WHERE owner = ? AND id = ? AND entry = ?"
            rows = [
                row
                for row in rows_of(items, last + 1)
                if not new or not transaction.execute(known, (self._owner, row[1], entry.key)).fetchone()
            ]
            if transaction.execute("SELECT 1 FROM entries WHERE key = ?", (entry.key,)).fetchone():
                self._store.add(transaction, self._owner, entry.key, rows)

    def add_to_conversation(self, id: str, items: Iterable[Item]) -> None:
        """Add the items of an answer that a conversation does not have yet; a failure is only logged. A conversation
        that was deleted meanwhile stays deleted."""
        with _answered_all_the_same("conversation", id):
            self.add_items(id, items, new=True)

    def conversation(self, conversation_id: str) -> list[Item]:
        return self._decoded(self._bodies(self._entry(conversation_id, "conversation").key, 0, END))

    def conversation_page(self, id: str, query: Mapping[str, str]) -> dict[str, Any]:
        return self._page([self._entry(id, "conversation").key], query)

    def item_of(self, id: str, item: str) -> msgspec.Raw:
        """An item of a conversation, encoded."""
        entry = self._entry(id, "conversation")
        query = "SELECT body FROM items WHERE owner = ? AND id = ? AND entry = ? ORDER BY place LIMIT 1"
        for (body,) in self._store.database.rows(query, self._owner, item, entry.key):
            return msgspec.Raw(bytes(body))
        raise not_found("item", item)

    def delete_item(self, id: str, item: str) -> StoredConversation:
        """Delete an item of a conversation, which is returned."""
        entry = self._entry(id, "conversation")
        query = "DELETE FROM items WHERE owner = ? AND id = ? AND entry = ? RETURNING LENGTH(body)"
        with self._store.database.transaction() as transaction:
            gone = transaction.execute(query, (self._owner, item, entry.key)).fetchall()
            size = sum(bytes_of(self._owner, item, length) for (length,) in gone)
            transaction.execute("UPDATE entries SET bytes = bytes - ? WHERE key = ?", (size, entry.key))
        if not gone:
            raise not_found("item", item)
        return from_json(entry.body, StoredConversation)

    # Both

    def delete(self, kind: Kind, id: str) -> None:
        query = "SELECT key FROM entries WHERE owner = ? AND id = ? AND kind = ?"
        with self._store.database.transaction() as transaction:
            row = transaction.execute(query, (self._owner, id, kind)).fetchone()
            if row is None:
                raise not_found(kind, id)
            _remove(transaction, row[0])

    def item(self, item_id: str) -> Item:
        """The item of the entry that was used last among those that have an item of this id."""
        query = """SELECT items.body FROM items JOIN entries ON entries.key = items.entry
            WHERE items.owner = ? AND items.id = ? ORDER BY entries.used DESC, items.place LIMIT 1"""
        for (body,) in self._store.database.rows(query, self._owner, item_id):
            return self._decoded([bytes(body)])[0]
        raise not_found("item", item_id)

    def _entry(self, id: str, kind: Kind) -> Entry:
        return self._store.find(self._owner, id, kind)

    def _chain(self, id: str) -> list[int]:
        """The keys of a response and those that it goes on from, the first one first."""
        keys: list[int] = []
        previous: str | None = id
        while previous is not None:
            key, previous, _ = self._entry(previous, "response")
            keys.append(key)
        return keys[::-1]

    def _bodies(self, key: int, first: int, end: int) -> list[bytes]:
        query = "SELECT body FROM items WHERE entry = ? AND place >= ? AND place < ? ORDER BY place"
        return [bytes(body) for (body,) in self._store.database.rows(query, key, first, end)]

    def _decoded(self, bodies: Sequence[bytes]) -> list[Item]:
        self._hold(sum(map(decoded_bytes, bodies)))
        return [from_json(body) for body in bodies]

    def _page(self, keys: list[int], query: Mapping[str, str]) -> dict[str, Any]:
        """A page of the items of these entries, without the output of the last one."""
        paging = paging_of(query)
        found: list[tuple[str, msgspec.Raw]] = []
        with self._store.database.transaction() as transaction:
            start, place = 0, -1 if paging.forwards else END
            ordered = keys if paging.forwards else keys[::-1]
            if paging.after is not None:
                start, place = self._place_of(transaction, paging.after, ordered, keys[-1])
            for key in ordered[start:]:
                end = OUTPUT if key == keys[-1] else END
                values = (key, place, end, paging.limit + 1 - len(found))
                rows = transaction.execute(paging.query, values).fetchall()
                found += [(own, msgspec.Raw(bytes(body))) for own, body in rows]
                place = -1 if paging.forwards else END
        return shown(found, paging.limit)

    def _place_of(
        self, transaction: sqlite3.Connection, item: str, ordered: list[int], last: int
    ) -> tuple[int, int]:
        """Where an item comes first: the number of its entry, and its place there. Raises `ServerError`."""
        query = "SELECT entry, place FROM items WHERE owner = ? AND id = ?"
        numbers = {key: number for number, key in enumerate(ordered)}
        places = [
            (numbers[entry], place)
            for entry, place in transaction.execute(query, (self._owner, item)).fetchall()
            if entry in numbers and (entry != last or place < OUTPUT)
        ]
        if not places:
            raise unknown_item()
        return min(places)


@contextlib.contextmanager
def _answered_all_the_same(kind: Kind, id: str) -> Iterator[None]:
    """Log storage errors: a full disk must not cost the client its answer."""
    try:
        yield
    except ServerError as error:
        if error.report.kind != "not_found":
            log.error("The %s %s could not be stored: %s", kind, id, error.report.message)


def not_found(what: str, id: str) -> ServerError:
    return ServerError(
        "not_found", f"There is no {what} {id!r}: it was never stored, was deleted, or is too old.", what
    )


def unknown_item() -> ServerError:
    return ServerError("invalid_request", "`after` must be the id of one of the items.", "after")


SCHEMA: Final = Schema(version=3, tables=TABLES)


class Paging(Struct, frozen=True):
    """What a client asks of OpenAI's list endpoints."""

    order: Literal["asc", "desc"] = "desc"
    limit: Annotated[int, Meta(ge=1, le=LARGEST_PAGE)] = 20
    after: str | None = None  # an item's id

    @property
    def forwards(self) -> bool:
        """Whether the oldest comes first."""
        return self.order == "asc"

    @property
    def query(self) -> str:
        """The query of the items of an entry, given its key, the place before them, their end, and how many."""
        way, order = (">", "ASC") if self.forwards else ("<", "DESC")
        return (
            f"SELECT id, body FROM items WHERE entry = ? AND place {way} ? AND place < ? "
            f"ORDER BY place {order} LIMIT ?"
        )


def paging_of(query: Mapping[str, str]) -> Paging:
    """Raises `ServerError`."""
    try:
        return convert(dict(query), Paging, strict=False)
    except msgspec.ValidationError as error:
        raise validation_error(str(error), Paging) from None


def page_of(items: list[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """One page of items in memory, as OpenAI's list endpoints give them. `items` are oldest first."""
    paging = paging_of(query)
    ordered = items if paging.forwards else items[::-1]
    if paging.after is not None:
        ids = [item.get("id") for item in ordered]
        if paging.after not in ids:
            raise unknown_item()
        ordered = ordered[ids.index(paging.after) + 1 :]
    return shown([(str(item.get("id")), item) for item in ordered], paging.limit)


def shown(found: Sequence[tuple[str, Any]], limit: int) -> dict[str, Any]:
    """A page of the first `limit` of these ids and items."""
    page = found[:limit]
    return {
        "object": "list",
        "data": [item for _, item in page],
        "first_id": page[0][0] if page else "",
        "last_id": page[-1][0] if page else "",
        "has_more": len(found) > limit,
    }

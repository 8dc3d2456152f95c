"""Keeps responses and conversations for later turns: bounded in entries, bytes and age, separate for each API key.

They are kept in SQLite, in a file if the operator names one, else in memory. Calls may block on a disk: make them on a
thread.
"""

import contextlib
import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec
import psutil
from msgspec import Struct, field

from pippin.api.sqlite import Schema, SQLite, open_file, open_memory
from pippin.config.options.server import ServerOptions
from pippin.core.decoding import from_json
from pippin.core.errors import ServerError

log = logging.getLogger(__name__)

Item = dict[str, Any]
Kind = Literal["response", "conversation"]

TABLES: Final = """
CREATE TABLE IF NOT EXISTS entries (
    owner TEXT NOT NULL, id TEXT NOT NULL, kind TEXT NOT NULL,
    created REAL NOT NULL, used REAL NOT NULL, bytes INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (owner, id)
);
CREATE INDEX IF NOT EXISTS entries_used ON entries (used);
CREATE TABLE IF NOT EXISTS items (
    owner TEXT NOT NULL, item TEXT NOT NULL, entry TEXT NOT NULL,
    PRIMARY KEY (owner, item, entry)
);
CREATE INDEX IF NOT EXISTS items_entry ON items (owner, entry);
CREATE INDEX IF NOT EXISTS entries_bytes ON entries (owner, bytes, created);
CREATE TABLE IF NOT EXISTS running (
    owner TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, process INTEGER NOT NULL,
    PRIMARY KEY (owner, id)
);
"""
# A response that is stored again, for example when it has ended, keeps its time of creation.
_PUT: Final = """INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (owner, id) DO UPDATE
    SET kind = excluded.kind, used = excluded.used, bytes = excluded.bytes, body = excluded.body"""

LARGEST_HEAD: Final = 64 << 10  # bytes of a conversation before its items; 16 pairs of metadata take 9 KiB
BEFORE_ITEMS: Final = b',"items":['
"""Occurs at most once in the JSON of a conversation: quotes inside texts are escaped, and metadata hold no lists."""
LARGEST_PAGE: Final = 100  # items


class StoredResponse(Struct, kw_only=True, omit_defaults=True):
    """One turn of a conversation. The turns before it are found through `previous`, or in `before`."""

    response: dict[str, Any]  # the response object
    input: list[Item] = field(default_factory=list)  # of this turn alone, with ids
    previous: str | None = None
    before: list[Item] | None = None  # the conversation's items when this turn began


class StoredConversation(Struct, kw_only=True, omit_defaults=True):
    """A conversation of OpenAI's Conversations API, with all its items."""

    id: str
    created_at: int
    metadata: dict[str, str] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)


Change = Callable[[StoredConversation], object]
"""Changes a conversation in place; if it raises, the stored conversation stays as it was."""

Body = TypeVar("Body", StoredResponse, StoredConversation)


class ResponseStore:
    """The responses and conversations of all callers. `for_owner` returns the view of one caller."""

    def __init__(
        self,
        database: SQLite | None = None,
        *,
        entries: int = 1024,
        megabytes: float = 256.0,
        hours: float = 720.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`database` has the tables of `TABLES`; without it the store is in memory."""
        self._entries = entries
        self._bytes = int(megabytes * 2**20)
        self._seconds = hours * 3600
        self._clock = clock
        self._database = open_memory(SCHEMA) if database is None else database

    def for_owner(self, owner: str | None) -> "OwnedHistory":
        return OwnedHistory(self, owner or "")

    def close(self) -> None:
        self._database.close()

    def put(
        self,
        owner: str,
        id: str,
        kind: Kind,
        body: bytes,
        items: Iterable[str],
        replaces: bytes | None = None,
    ) -> bool:
        """Write an entry, then evict entries that are too old, and more until the bounds hold.

        The least recently used entry of the owner who holds most is evicted first: an owner who holds less than an
        equal share loses nothing to others. An entry that alone exceeds the bound is not kept.

        `replaces`: the `digest` of the entry's body as the caller has read it. If the entry has changed since, or is
        gone, nothing is written, and the result is False. Raises `ServerError` if nothing can be written.
        """
        now = self._clock()
        with self._database.transaction() as transaction:
            if replaces is not None and not _still_is(transaction, owner, id, kind, replaces):
                return False
            if len(body) > self._bytes or not self._entries:
                _remove(transaction, owner, id)
            else:
                transaction.execute(_PUT, (owner, id, kind, now, now, len(body), body))
                transaction.execute("DELETE FROM items WHERE owner = ? AND entry = ?", (owner, id))
                transaction.executemany(
                    "INSERT INTO items VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                    [(owner, item, id) for item in items],
                )
            if self._is_crowded(transaction, now):
                self._make_room(transaction, now)
        return True

    def get(self, owner: str, id: str, kind: Kind) -> bytes | None:
        now = self._clock()
        with self._database.transaction() as transaction:
            row = transaction.execute(
                "UPDATE entries SET used = ? WHERE owner = ? AND id = ? AND kind = ? AND created >= ? RETURNING body",
                (now, owner, id, kind, now - self._seconds),
            ).fetchone()
        return None if row is None else bytes(row[0])

    def begin(self, owner: str, id: str, kind: Kind, size: int) -> bytes | None:
        """The first `size` bytes of an entry's body."""
        with self._database.transaction() as transaction:
            row = transaction.execute(
                "SELECT SUBSTR(body, 1, ?) FROM entries WHERE owner = ? AND id = ? AND kind = ? AND created >= ?",
                (size, owner, id, kind, self._clock() - self._seconds),
            ).fetchone()
        return None if row is None else bytes(row[0])

    def holder_of(self, owner: str, item: str) -> tuple[str, Kind] | None:
        """The id and the kind of the entry that holds an item."""
        query = """SELECT entries.id, entries.kind FROM items JOIN entries
            ON entries.owner = items.owner AND entries.id = items.entry
            WHERE items.owner = ? AND items.item = ? ORDER BY entries.used DESC LIMIT 1"""
        with self._database.transaction() as transaction:
            row = transaction.execute(query, (owner, item)).fetchone()
        return None if row is None else (row[0], row[1])

    def delete(self, owner: str, id: str, kind: Kind) -> bool:
        with self._database.transaction() as transaction:
            known = transaction.execute(
                "SELECT 1 FROM entries WHERE owner = ? AND id = ? AND kind = ?", (owner, id, kind)
            ).fetchone()
            return known is not None and _remove(transaction, owner, id)

    def begins(self, owner: str, id: str, body: bytes) -> None:
        """Note that a response in the background begins, which this body asks for: a server that follows begins it
        again, unless it `ends`. A failure is only logged."""
        values = (owner, id, body, os.getpid())
        with contextlib.suppress(ServerError), self._database.transaction() as transaction:
            transaction.execute("INSERT OR REPLACE INTO running VALUES (?, ?, ?, ?)", values)

    def ends(self, owner: str, id: str) -> None:
        """A response has ended. A failure is only logged."""
        with contextlib.suppress(ServerError), self._database.transaction() as transaction:
            transaction.execute("DELETE FROM running WHERE owner = ? AND id = ?", (owner, id))

    def take_unfinished(self) -> list[tuple[str, str, bytes]]:
        """Owner, id and body of each response that a server which is gone has begun and not ended. They are forgotten.
        Raises `ServerError`."""
        with self._database.transaction() as transaction:
            found = transaction.execute("SELECT DISTINCT process FROM running").fetchall()
            gone = [each for each in found if each[0] == os.getpid() or not psutil.pid_exists(each[0])]
            query = "DELETE FROM running WHERE process = ? RETURNING owner, id, body"
            return [row for process in gone for row in transaction.execute(query, process).fetchall()]

    def _is_crowded(self, transaction: sqlite3.Connection, now: float) -> bool:
        query = "SELECT COUNT(*), COALESCE(SUM(bytes), 0), MIN(created) FROM entries"
        entries, size, oldest = transaction.execute(query).fetchone()
        too_old = oldest is not None and oldest < now - self._seconds
        return bool(entries > self._entries or size > self._bytes or too_old)

    def _make_room(self, transaction: sqlite3.Connection, now: float) -> None:
        too_old = "SELECT owner, id FROM entries WHERE created < ?"
        for key in transaction.execute(too_old, (now - self._seconds,)).fetchall():
            _remove(transaction, *key)
        query = "SELECT owner, COUNT(*), SUM(bytes) FROM entries GROUP BY owner"
        held = {owner: [entries, int(size)] for owner, entries, size in transaction.execute(query).fetchall()}
        for figure, bound in ((0, self._entries), (1, self._bytes)):
            while sum(each[figure] for each in held.values()) > bound:
                owner = max(held, key=lambda owner: held[owner][figure])
                size = _remove_oldest(transaction, owner)
                held[owner][0] -= 1
                held[owner][1] -= size


def _still_is(transaction: sqlite3.Connection, owner: str, id: str, kind: Kind, known: bytes) -> bool:
    """Whether an entry's body has this digest."""
    query = "SELECT body FROM entries WHERE owner = ? AND id = ? AND kind = ?"
    row = transaction.execute(query, (owner, id, kind)).fetchone()
    return row is not None and digest(bytes(row[0])) == known


def _remove_oldest(transaction: sqlite3.Connection, owner: str) -> int:
    """Delete the least recently used entry of this owner; returns its bytes."""
    query = "SELECT id, bytes FROM entries WHERE owner = ? ORDER BY used, created, id LIMIT 1"
    oldest, size = transaction.execute(query, (owner,)).fetchone()
    _remove(transaction, owner, oldest)
    return int(size)


def _remove(transaction: sqlite3.Connection, owner: str, id: str) -> bool:
    """Delete an entry; returns whether there was one."""
    removed = transaction.execute("DELETE FROM entries WHERE owner = ? AND id = ?", (owner, id))
    transaction.execute("DELETE FROM items WHERE owner = ? AND entry = ?", (owner, id))
    return removed.rowcount > 0


class OwnedHistory:
    """One caller's responses and conversations. Those of other callers are not found here."""

    def __init__(self, store: ResponseStore, owner: str) -> None:
        self._store = store
        self._owner = owner

    def keep(self, id: str, turn: StoredResponse) -> None:
        """Store a response and the turn that it ends; a failure is only logged."""
        items = [*turn.input, *turn.response["output"]]
        with _answered_all_the_same("response", id):
            self._put(id, "response", msgspec.json.encode(turn), items)

    def response(self, id: str) -> StoredResponse:
        return self._get(id, "response", StoredResponse)

    def delete_response(self, id: str) -> None:
        if not self._store.delete(self._owner, id, "response"):
            raise not_found("response", id)

    def save_conversation(self, conversation: StoredConversation) -> None:
        """Store a new conversation; `change_conversation` changes an existing one."""
        self._put(conversation.id, "conversation", msgspec.json.encode(conversation), conversation.items)

    def change_conversation(self, id: str, change: Change) -> StoredConversation:
        """Change a conversation, store it and return it; concurrent changes of others are kept.

        `change` is called again if another change came first. Raises `ServerError` if there is no such conversation,
        and whatever `change` raises.
        """
        while True:
            body = self._store.get(self._owner, id, "conversation")
            if body is None:
                raise not_found("conversation", id)
            conversation = from_json(body, StoredConversation)
            change(conversation)
            changed = msgspec.json.encode(conversation)
            if self._put(id, "conversation", changed, conversation.items, digest(body)):
                return conversation

    def add_to_conversation(self, id: str, items: Iterable[Item]) -> None:
        """Add the items of an answer that a conversation does not have yet; a failure is only logged. A conversation
        that was deleted meanwhile stays deleted."""
        given = list(items)

        def add(conversation: StoredConversation) -> None:
            known = {item.get("id") for item in conversation.items}
            conversation.items += [item for item in given if item.get("id") not in known]

        with _answered_all_the_same("conversation", id):
            self.change_conversation(id, add)

    def stored_conversation(self, id: str) -> StoredConversation:
        return self._get(id, "conversation", StoredConversation)

    def conversation_head(self, id: str) -> StoredConversation:
        """A conversation without its items, which may be many megabytes and come last in the stored JSON."""
        begun = self._store.begin(self._owner, id, "conversation", LARGEST_HEAD)
        if begun is None:
            raise not_found("conversation", id)
        head, found, _ = begun.partition(BEFORE_ITEMS)
        return from_json(head + b"}", StoredConversation) if found else self.stored_conversation(id)

    def delete_conversation(self, id: str) -> None:
        if not self._store.delete(self._owner, id, "conversation"):
            raise not_found("conversation", id)

    def items(self, response_id: str) -> list[Item]:
        """Every item of the conversation up to and including that response, oldest first."""
        turn = self.response(response_id)
        return [*self.input_items(turn), *turn.response["output"]]

    def input_items(self, turn: StoredResponse) -> list[Item]:
        """The model's input for a response: all earlier turns, and the input of its own turn."""
        turns = [turn]
        while (previous := turns[-1].previous) is not None:
            turns.append(self.response(previous))
        first, *later = reversed(turns)
        items = [*(first.before or ()), *first.input]
        before = first
        for following in later:
            items += [*before.response["output"], *following.input]
            before = following
        return items

    def conversation(self, conversation_id: str) -> list[Item]:
        return self.stored_conversation(conversation_id).items

    def item(self, item_id: str) -> Item:
        holder = self._store.holder_of(self._owner, item_id)
        if holder is not None:
            entry, kind = holder
            if kind == "conversation":
                items = self.conversation(entry)
            else:
                turn = self.response(entry)
                items = [*turn.input, *turn.response["output"]]
            for item in items:
                if item.get("id") == item_id:
                    return item
        raise not_found("item", item_id)

    def _put(
        self, id: str, kind: Kind, body: bytes, items: Iterable[Item], replaces: bytes | None = None
    ) -> bool:
        ids = [item["id"] for item in items if isinstance(item.get("id"), str)]
        return self._store.put(self._owner, id, kind, body, ids, replaces)

    def _get(self, id: str, kind: Kind, type: type[Body]) -> Body:
        body = self._store.get(self._owner, id, kind)
        if body is None:
            raise not_found(kind, id)
        return from_json(body, type)


def digest(body: bytes) -> bytes:
    """A digest that tells whether the body of an entry has changed."""
    return hashlib.blake2b(body, digest_size=16).digest()


@contextlib.contextmanager
def _answered_all_the_same(kind: Kind, id: str) -> Iterator[None]:
    """Log storage errors: a full disk must not cost the client its answer."""
    try:
        yield
    except ServerError as error:
        if error.report.kind != "not_found":
            log.error("The %s %s could not be stored: %s", kind, id, error.report.message)


def open_store(options: ServerOptions) -> ResponseStore:
    """The store that the options name. Raises `ServerError`."""
    file = options.response_store
    return ResponseStore(
        None if file is None else open_file(Path(file), SCHEMA),
        entries=options.response_store_entries,
        megabytes=options.response_store_mb,
        hours=options.response_store_hours,
    )


def not_found(what: str, id: str) -> ServerError:
    return ServerError(
        "not_found", f"There is no {what} {id!r}: it was never stored, was deleted, or is too old.", what
    )


SCHEMA: Final = Schema(version=2, tables=TABLES)


def page_of(items: list[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """One page of items, as OpenAI's list endpoints give them.

    `items` are oldest first; `query` has `after` (an item's id), `limit` and `order` (newest first if not set).
    """
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ServerError("invalid_request", "`order` must be `asc` or `desc`.", "order")
    limit = _limit(query.get("limit", "20"))
    ordered = items if order == "asc" else items[::-1]
    if (after := query.get("after")) is not None:
        ids = [item.get("id") for item in ordered]
        if after not in ids:
            raise ServerError("invalid_request", "`after` must be the id of one of the items.", "after")
        ordered = ordered[ids.index(after) + 1 :]
    data = ordered[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0].get("id") if data else "",
        "last_id": data[-1].get("id") if data else "",
        "has_more": len(ordered) > limit,
    }


def _limit(text: str) -> int:
    limit = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    if not 1 <= limit <= LARGEST_PAGE:
        raise ServerError("invalid_request", f"`limit` must be a number from 1 to {LARGEST_PAGE}.", "limit")
    return limit

"""Files, batches and the lines of batches, kept in a folder.

Each line's answer is written in a transaction of its own, so that after a crash each line is either answered or still
open, never both.
"""

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final, Literal
from uuid import uuid4

import msgspec
from msgspec import Struct, field

from pippin.api.http.body import MIB
from pippin.api.sqlite import Schema, SQLite, open_file
from pippin.core.decoding import from_json
from pippin.core.errors import SHUTTING_DOWN, ServerError

TABLES: Final = """
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created INTEGER NOT NULL, bytes INTEGER NOT NULL, body BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created INTEGER NOT NULL, ended INTEGER NOT NULL, body BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lines (
    batch TEXT NOT NULL, number INTEGER NOT NULL, custom_id TEXT NOT NULL,
    start INTEGER NOT NULL, length INTEGER NOT NULL, status INTEGER, request TEXT, reply BLOB,
    PRIMARY KEY (batch, number)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS lines_open ON lines (batch, number) WHERE status IS NULL;
"""
LEFT_OVER: Final = 86400.0
"""Seconds after which bytes without a file are taken for leftovers of a server that died while writing them."""
SCHEMA: Final = Schema(version=1, tables=TABLES)


Status = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]
ENDED: Final = ("completed", "failed", "expired", "cancelled")
LEAST_FILE: Final = 4096
"""The fewest bytes that a file counts: even a small file takes a block on the disk and a row in the database."""
_REPLIES: Final = """SELECT COALESCE(SUM(LENGTH(reply)), 0) FROM lines JOIN batches ON batches.id = lines.batch
    WHERE owner = ?"""
MOST_ENDED: Final = 1000
"""Batches that are kept for one owner after their end; the API has no way to delete one."""


class StoredFile(Struct, frozen=True, kw_only=True):
    """The metadata of a file, in the form of OpenAI's API. Times are seconds since the epoch."""

    id: str
    object: Literal["file"] = "file"
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int | None = None
    status: Literal["processed"] = "processed"
    status_details: None = None


class Problem(Struct, frozen=True, kw_only=True):
    """Why a line of an input file, or the whole file, is invalid."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Counts(Struct, frozen=True):
    total: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def open(self) -> int:
        return self.total - self.completed - self.failed


class Batch(Struct, kw_only=True, omit_defaults=True):
    """A batch. Times are seconds since the epoch; `input_file` holds its lines."""

    id: str
    owner: str
    endpoint: str
    input_file: str
    created_at: int
    expires_at: int
    window: str = "24h"
    status: Status = "validating"
    metadata: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    output_file: str | None = None
    error_file: str | None = None
    output_expires_after: int | None = None  # seconds
    times: dict[str, int] = field(default_factory=dict)  # when each status began
    counts: Counts | None = None  # of its lines, once it has ended

    @property
    def ended(self) -> bool:
        return self.status in ENDED


class Line(Struct, frozen=True):
    """One request of a batch: its place in the input file, and its answer once there is one."""

    number: int
    custom_id: str
    start: int
    length: int
    status: int | None = None  # of HTTP
    request: str | None = None  # the id of the request
    reply: bytes | None = None


class BatchStore:
    """All callers' files and batches: an SQLite database beside the files' bytes, in a folder that is made for the
    first file, and then locked by this server. Methods that take an owner find only what belongs to that owner."""

    def __init__(self, folder: Path, *, megabytes: float) -> None:
        """`megabytes` bounds what one owner has on the disk: files, and answers of batches."""
        self._folder = folder
        self._files = folder / "files"
        self._database: SQLite | None = None
        self._held: IO[bytes] | None = None  # the lock on the folder
        self._is_closed = False
        self._most = int(megabytes * MIB)
        self._lock = threading.RLock()
        self._replies: dict[str, int] = {}  # bytes of each owner's answers, once they were counted

    @property
    def exists(self) -> bool:
        """Whether anything was ever stored."""
        return (self._folder / "batches.sqlite").exists()

    @property
    def database(self) -> SQLite:
        """The database with the tables of `TABLES`; makes the folder.

        Raises `ServerError` if another server has the folder, and once the store is closed.
        """
        with self._lock:
            # A thread that outlives its cancelled task would take the lock again, and nobody would release it.
            if self._is_closed:
                raise ServerError.of(SHUTTING_DOWN)
            if self._database is None:
                try:
                    self._held, self._database = self._opened()
                except OSError as error:
                    message = f"The folder of --files-dir cannot be used: {error.strerror}."
                    raise ServerError("overloaded", message) from None
            return self._database

    def _opened(self) -> tuple[IO[bytes], SQLite]:
        """A lock on the folder, held until it is closed, and the database. Raises `ServerError` and `OSError`."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (self._folder / "lock").open("wb")
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                message = (
                    f"Another server keeps its files in {self._folder}; name another folder with --files-dir."
                )
                raise ServerError("overloaded", message) from None
            self._folder.chmod(0o700)
            self._files.mkdir(exist_ok=True, mode=0o700)
            return lock, open_file(self._folder / "batches.sqlite", SCHEMA)
        except BaseException:
            lock.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for each in (self._database, self._held):
                if each is not None:
                    each.close()

    # Files

    def add_file(
        self,
        owner: str,
        filename: str,
        purpose: str,
        pieces: Iterable[bytes],
        *,
        expires_at: int | None = None,
    ) -> StoredFile:
        """Write a file. Raises `ServerError` if the owner's share of the disk is used up."""
        name = "file-" + uuid4().hex
        left, size = self._left(owner), 0

        def bounded() -> Iterator[bytes]:
            nonlocal size
            for piece in pieces:
                size += len(piece)
                if purpose == "batch" and size > left:
                    raise _full(self._most)
                yield piece

        path = self._files / name
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                out.writelines(bounded())
                out.flush()
                os.fsync(out.fileno())
            now = int(time.time())
            stored = StoredFile(
                id=name, filename=filename, purpose=purpose, bytes=size, created_at=now, expires_at=expires_at
            )
            with self.database.transaction() as database:
                database.execute(
                    "INSERT INTO files VALUES (?, ?, ?, ?, ?)",
                    (name, owner, now, size, msgspec.json.encode(stored)),
                )
        except BaseException as error:  # nothing of the file remains
            path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise ServerError("overloaded", f"The file can't be stored: {error.strerror}.") from None
            raise
        return stored

    def check_room(self, owner: str) -> None:
        """Raises `ServerError` if the owner's share of the disk is used up."""
        if self._left(owner) <= 0:
            raise _full(self._most)

    def file(self, owner: str, id: str) -> StoredFile:
        """Raises `ServerError("not_found")` if the owner has no such file."""
        found = self.database.rows("SELECT body FROM files WHERE id = ? AND owner = ?", id, owner)
        stored = from_json(found[0][0], StoredFile) if found else None
        if stored is None or self._is_old(stored):
            raise ServerError(
                "not_found", f"There is no file {id!r}: it was never stored, or was deleted.", "id"
            )
        return stored

    def files(self, owner: str) -> list[StoredFile]:
        """The owner's files, oldest first."""
        found = self.database.rows("SELECT body FROM files WHERE owner = ? ORDER BY created, id", owner)
        listed = [from_json(body, StoredFile) for (body,) in found]
        return [each for each in listed if not self._is_old(each)]

    def open_file(self, owner: str, id: str) -> IO[bytes]:
        """The bytes of a file. Raises `ServerError` or `OSError`, also while they are read."""
        return (self._files / self.file(owner, id).id).open("rb")

    def delete_file(self, owner: str, id: str) -> None:
        """Raises `ServerError` if there is no such file, or a batch still reads it."""
        self.file(owner, id)
        for batch in self.batches(owner):
            if batch.input_file == id and not batch.ended:
                raise ServerError(
                    "conflict", f"The batch {batch.id} still reads this file; cancel it first.", "id"
                )
        self._remove_file(id)

    def sweep(self) -> None:
        """Delete expired files, and the bytes of those that a server wrote, but died before it entered them in the
        database."""
        known = set()
        for (body,) in self.database.rows("SELECT body FROM files"):
            stored = from_json(body, StoredFile)
            known.add(stored.id)
            if self._is_old(stored):
                self._remove_file(stored.id)
        for path in self._files.iterdir():
            if path.name not in known and path.stat().st_mtime < time.time() - LEFT_OVER:
                path.unlink(missing_ok=True)

    # Batches

    def add_batch(self, batch: Batch, lines: Iterable[Line]) -> None:
        with self.database.transaction() as database:
            self._put(database, batch)
            # Of those that have ended, only the newest are kept.
            database.execute(
                "DELETE FROM batches WHERE id IN (SELECT id FROM batches WHERE owner = ? AND ended = 1 "
                "ORDER BY created DESC, id DESC LIMIT ? OFFSET ?)",
                (batch.owner, MOST_ENDED, MOST_ENDED),
            )
            database.executemany(
                "INSERT INTO lines (batch, number, custom_id, start, length) VALUES (?, ?, ?, ?, ?)",
                ((batch.id, line.number, line.custom_id, line.start, line.length) for line in lines),
            )

    def put(self, batch: Batch) -> None:
        """Write the state of a batch."""
        with self.database.transaction() as database:
            self._put(database, batch)

    def end(self, batch: Batch) -> None:
        """Write a batch that has ended. Its lines are deleted: their answers are in files by now."""
        batch.counts = self.counts(batch)
        with self.database.transaction() as database:
            self._put(database, batch)
            database.execute("DELETE FROM lines WHERE batch = ?", (batch.id,))
            self._replies.pop(batch.owner, None)

    def batch(self, owner: str, id: str) -> Batch:
        """Raises `ServerError("not_found")` if the owner has no such batch."""
        found = self.database.rows("SELECT body FROM batches WHERE id = ? AND owner = ?", id, owner)
        if not found:
            raise ServerError("not_found", f"There is no batch {id!r}.", "id")
        return from_json(found[0][0], Batch)

    def batches(self, owner: str) -> list[Batch]:
        """The owner's batches, oldest first."""
        found = self.database.rows("SELECT body FROM batches WHERE owner = ? ORDER BY created, id", owner)
        return [from_json(body, Batch) for (body,) in found]

    def unfinished(self) -> list[Batch]:
        """The batches of all owners that have not ended, oldest first."""
        found = self.database.rows("SELECT body FROM batches WHERE ended = 0 ORDER BY created, id")
        return [from_json(body, Batch) for (body,) in found]

    def open_lines(self, batch: str, after: int, most: int) -> list[Line]:
        """Lines without an answer whose number is above `after`, in order."""
        return self._lines(batch, after, most, "status IS NULL")

    def _lines(self, batch: str, after: int, most: int, condition: str) -> list[Line]:
        found = self.database.rows(
            "SELECT number, custom_id, start, length, status, request, reply FROM lines "
            f"WHERE batch = ? AND {condition} AND number > ? ORDER BY number LIMIT ?",
            *(batch, after, most),
        )
        return [Line(*each) for each in found]

    def answered(self, batch: Batch, number: int, status: int, request: str, reply: bytes) -> None:
        """Write the answer of a line; one that has an answer keeps it."""
        with self.database.transaction() as database:
            written = database.execute(
                "UPDATE lines SET status = ?, request = ?, reply = ? "
                "WHERE batch = ? AND number = ? AND status IS NULL",
                (status, request, reply, batch.id, number),
            )
        with self._lock:
            if written.rowcount and batch.owner in self._replies:
                self._replies[batch.owner] += len(reply)

    def lines(self, batch: str) -> Iterator[Line]:
        """All lines of a batch in order, with their answers, some at a time."""
        after = -1
        while found := self._lines(batch, after, 256, "TRUE"):
            yield from found
            after = found[-1].number

    def counts(self, batch: Batch) -> Counts:
        if batch.counts is not None:
            return batch.counts
        [(total, completed, answered)] = self.database.rows(
            "SELECT COUNT(*), COUNT(CASE WHEN status BETWEEN 200 AND 299 THEN 1 END), COUNT(status) "
            "FROM lines WHERE batch = ?",
            batch.id,
        )
        return Counts(total, completed, answered - completed)

    def _put(self, database: sqlite3.Connection, batch: Batch) -> None:
        database.execute(
            "INSERT INTO batches VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE "
            "SET ended = excluded.ended, body = excluded.body",
            (batch.id, batch.owner, batch.created_at, int(batch.ended), msgspec.json.encode(batch)),
        )

    def _left(self, owner: str) -> int:
        """Bytes of the disk that an owner may still take."""
        files = (
            "SELECT COALESCE(SUM(CASE WHEN bytes > ? THEN bytes ELSE ? END), 0) FROM files WHERE owner = ?"
        )
        with self.database.transaction() as database:
            (used,) = database.execute(files, (LEAST_FILE, LEAST_FILE, owner)).fetchone()
            if (replies := self._replies.get(owner)) is None:
                replies = self._replies[owner] = int(database.execute(_REPLIES, (owner,)).fetchone()[0])
        return self._most - int(used) - replies

    def _is_old(self, stored: StoredFile) -> bool:
        return stored.expires_at is not None and stored.expires_at <= time.time()

    def _remove_file(self, id: str) -> None:
        with self.database.transaction() as database:
            database.execute("DELETE FROM files WHERE id = ?", (id,))
        (self._files / id).unlink(missing_ok=True)


def _full(most: int) -> ServerError:
    return ServerError(
        "too_large",
        f"Your files and the answers of your batches take {most // MIB} MiB, which is the most (`--files-mb`); delete "
        "some.",
        "file",
    )

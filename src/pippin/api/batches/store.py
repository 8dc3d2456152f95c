"""Files, batches and the lines of batches in a folder: an SQLite database beside the files' bytes.

A line's answer is written in a transaction of its own before the next line begins, so that after a crash each line is
either answered or to be answered, and never both.
"""

import contextlib
import fcntl
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Final, Literal
from uuid import uuid4

import msgspec
from msgspec import Struct, field

from pippin.core.decoding import from_json
from pippin.core.errors import ServerError

Api = Literal["openai", "anthropic"]
Status = Literal[
    "validating",
    "in_progress",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
]
ENDED: Final = ("completed", "failed", "expired", "cancelled")
MIB: Final = 1 << 20

_SCHEMA: Final = """
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
_VERSION: Final = 1
LEAST_FILE: Final = 4096
"""Bytes that a file counts at least: of small ones the disk holds a block, and the database what is known of them."""
MOST_ENDED: Final = 1000
"""Batches of OpenAI's API that are kept for one owner after their end; that API has no way to delete one."""


class StoredFile(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a file. Times are seconds since the epoch."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int | None = None


class Problem(Struct, frozen=True, kw_only=True):
    """Why a line of a file, or all of it, can't be a request."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Counts(Struct, frozen=True):
    total: int = 0
    succeeded: int = 0
    failed: int = 0

    @property
    def open(self) -> int:
        return self.total - self.succeeded - self.failed


class Batch(Struct, kw_only=True, omit_defaults=True):
    """A batch. Times are seconds since the epoch; `input_file` holds its lines."""

    id: str
    owner: str
    api: Api
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
    """One request of a batch: its place in the input file, and once it is done its answer."""

    number: int
    custom_id: str
    start: int
    length: int
    status: int | None = None  # of HTTP
    request: str | None = None  # the id of the request
    reply: bytes | None = None


class BatchStore:
    """All callers' files and batches. Methods that take an owner find only what belongs to that owner."""

    def __init__(self, folder: Path, *, megabytes: float, clock: Callable[[], float] = time.time) -> None:
        """`megabytes` bounds what one owner has on the disk: files, and answers of batches."""
        self._folder = folder
        self._most = int(megabytes * MIB)
        self._clock = clock
        self._lock = threading.RLock()
        self._open_database: sqlite3.Connection | None = None
        self._held: IO[bytes] | None = None  # the lock on the folder
        self._replies: dict[str, int] = {}  # bytes of each owner's answers, once they were counted

    @property
    def exists(self) -> bool:
        """Whether anything was ever stored; the folder is made for the first file."""
        return (self._folder / "batches.sqlite").exists()

    def close(self) -> None:
        with self._lock:
            if self._open_database is not None:
                self._open_database.close()
                self._open_database = None
            if self._held is not None:
                self._held.close()
                self._held = None

    # Files

    def add_file(
        self,
        owner: str,
        filename: str,
        purpose: str,
        pieces: Iterable[bytes],
        *,
        expires_at: int | None = None,
        prefix: str = "file-",
    ) -> StoredFile:
        """Write a file. Raises `ServerError` where the owner's share of the disk is used up."""
        name = prefix + uuid4().hex
        with self._lock:
            left = self._most - self._used(owner)
        path, size = self._path(name), 0
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                for piece in pieces:
                    size += len(piece)
                    if purpose == "batch" and size > left:
                        raise _full(self._most)
                    out.write(piece)
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            path.unlink(missing_ok=True)
            raise ServerError("overloaded", f"The file can't be stored: {error.strerror}.") from None
        except ServerError:
            path.unlink(missing_ok=True)
            raise
        now = int(self._clock())
        stored = StoredFile(
            id=name, filename=filename, purpose=purpose, bytes=size, created_at=now, expires_at=expires_at
        )
        with self._writing() as database:
            database.execute(
                "INSERT INTO files VALUES (?, ?, ?, ?, ?)",
                (name, owner, now, size, msgspec.json.encode(stored)),
            )
        return stored

    def check_room(self, owner: str) -> None:
        """Raises `ServerError` where the owner's share of the disk is used up."""
        with self._lock:
            if self._used(owner) >= self._most:
                raise _full(self._most)

    def file(self, owner: str, id: str) -> StoredFile:
        """Raises `ServerError("not_found")` for a file that this owner has not."""
        with self._lock:
            found = self._database.execute(
                "SELECT body FROM files WHERE id = ? AND owner = ?", (id, owner)
            ).fetchone()
        stored = from_json(found[0], StoredFile) if found else None
        if stored is None or self._is_old(stored):
            raise ServerError(
                "not_found", f"There is no file {id!r}: it was never stored, or was deleted.", "id"
            )
        return stored

    def files(self, owner: str) -> list[StoredFile]:
        """The owner's files, oldest first."""
        with self._lock:
            found = self._database.execute(
                "SELECT body FROM files WHERE owner = ? ORDER BY created, id", (owner,)
            ).fetchall()
        listed = [from_json(body, StoredFile) for (body,) in found]
        return [each for each in listed if not self._is_old(each)]

    def path_of(self, owner: str, id: str) -> Path:
        """Where the bytes of a file are. Raises `ServerError("not_found")`."""
        return self._path(self.file(owner, id).id)

    def delete_file(self, owner: str, id: str) -> None:
        """Raises `ServerError`: a file that a batch still reads stays."""
        self.file(owner, id)
        for batch in self.batches(owner):
            if batch.input_file == id and not batch.ended:
                raise ServerError(
                    "conflict", f"The batch {batch.id} still reads this file; cancel it first.", "id"
                )
        self._remove_file(id)

    def sweep(self) -> None:
        """Delete the files whose time is over."""
        if not self.exists:
            return
        with self._lock:
            found = self._database.execute("SELECT body FROM files").fetchall()
        for (body,) in found:
            stored = from_json(body, StoredFile)
            if self._is_old(stored):
                self._remove_file(stored.id)

    # Batches

    def add_batch(self, batch: Batch, lines: Iterable[Line]) -> None:
        with self._writing() as database:
            self._put(database, batch)
            self._forget_oldest(database, batch.owner)
            database.executemany(
                "INSERT INTO lines (batch, number, custom_id, start, length) VALUES (?, ?, ?, ?, ?)",
                ((batch.id, line.number, line.custom_id, line.start, line.length) for line in lines),
            )

    def put(self, batch: Batch) -> None:
        with self._writing() as database:
            self._put(database, batch)

    def end(self, batch: Batch) -> None:
        """Write a batch that has ended. The answers of OpenAI's stand in files by now, so its lines go."""
        batch.counts = self.counts(batch)
        with self._writing() as database:
            self._put(database, batch)
            if batch.api == "openai":
                self._remove_lines(database, batch)

    def batch(self, owner: str, id: str) -> Batch:
        """Raises `ServerError("not_found")` for a batch that this owner has not."""
        with self._lock:
            found = self._database.execute(
                "SELECT body FROM batches WHERE id = ? AND owner = ?", (id, owner)
            ).fetchone()
        if found is None:
            raise ServerError("not_found", f"There is no batch {id!r}.", "id")
        return from_json(found[0], Batch)

    def batches(self, owner: str) -> list[Batch]:
        """The owner's batches, oldest first."""
        with self._lock:
            found = self._database.execute(
                "SELECT body FROM batches WHERE owner = ? ORDER BY created, id", (owner,)
            ).fetchall()
        return [from_json(body, Batch) for (body,) in found]

    def unfinished(self) -> list[Batch]:
        """The batches of all owners that have not ended, oldest first."""
        with self._lock:
            found = self._database.execute(
                "SELECT body FROM batches WHERE ended = 0 ORDER BY created, id"
            ).fetchall()
        return [from_json(body, Batch) for (body,) in found]

    def delete_batch(self, batch: Batch) -> None:
        """Delete a batch that has ended, with its lines. Its files stay, but for a body that was never a file."""
        with self._writing() as database:
            database.execute("DELETE FROM batches WHERE id = ?", (batch.id,))
            self._remove_lines(database, batch)
        if batch.api == "anthropic":
            self._remove_file(batch.input_file)

    def open_lines(self, batch: str, after: int, most: int) -> list[Line]:
        """Lines without an answer whose number is above `after`, in order."""
        with self._lock:
            found = self._database.execute(
                "SELECT number, custom_id, start, length FROM lines "
                "WHERE batch = ? AND status IS NULL AND number > ? ORDER BY number LIMIT ?",
                (batch, after, most),
            ).fetchall()
        return [Line(*each) for each in found]

    def answered(self, batch: Batch, number: int, status: int, request: str, reply: bytes) -> None:
        """Write the answer of a line; one that has an answer keeps it."""
        with self._writing() as database:
            written = database.execute(
                "UPDATE lines SET status = ?, request = ?, reply = ? "
                "WHERE batch = ? AND number = ? AND status IS NULL",
                (status, request, reply, batch.id, number),
            )
            if written.rowcount and batch.owner in self._replies:
                self._replies[batch.owner] += len(reply)

    def lines(self, batch: str) -> Iterator[Line]:
        """All lines of a batch in order, with their answers, some at a time."""
        after = -1
        while True:
            with self._lock:
                found = self._database.execute(
                    "SELECT number, custom_id, start, length, status, request, reply FROM lines "
                    "WHERE batch = ? AND number > ? ORDER BY number LIMIT 256",
                    (batch, after),
                ).fetchall()
            if not found:
                return
            yield from (Line(*each) for each in found)
            after = found[-1][0]

    def counts(self, batch: Batch) -> Counts:
        if batch.counts is not None:
            return batch.counts
        with self._lock:
            total, succeeded, answered = self._database.execute(
                "SELECT COUNT(*), SUM(status BETWEEN 200 AND 299), COUNT(status) FROM lines WHERE batch = ?",
                (batch.id,),
            ).fetchone()
        return Counts(total, succeeded or 0, answered - (succeeded or 0))

    def _put(self, database: sqlite3.Connection, batch: Batch) -> None:
        database.execute(
            "INSERT OR REPLACE INTO batches VALUES (?, ?, ?, ?, ?)",
            (batch.id, batch.owner, batch.created_at, int(batch.ended), msgspec.json.encode(batch)),
        )

    def _remove_lines(self, database: sqlite3.Connection, batch: Batch) -> None:
        database.execute("DELETE FROM lines WHERE batch = ?", (batch.id,))
        self._replies.pop(batch.owner, None)

    def _forget_oldest(self, database: sqlite3.Connection, owner: str) -> None:
        # Those of Anthropic's API hold their results, count as files, and are deleted by their owner.
        database.execute(
            "DELETE FROM batches WHERE id IN (SELECT id FROM batches WHERE owner = ? AND ended = 1 "
            "AND id LIKE 'batch!_%' ESCAPE '!' ORDER BY created DESC, id DESC LIMIT -1 OFFSET ?)",
            (owner, MOST_ENDED),
        )

    def _used(self, owner: str) -> int:
        """Bytes on the disk."""
        files = self._database.execute(
            "SELECT SUM(MAX(bytes, ?)) FROM files WHERE owner = ?", (LEAST_FILE, owner)
        ).fetchone()[0]
        if owner not in self._replies:
            self._replies[owner] = (
                self._database.execute(
                    "SELECT SUM(LENGTH(reply)) FROM lines JOIN batches ON batches.id = lines.batch WHERE owner = ?",
                    (owner,),
                ).fetchone()[0]
                or 0
            )
        return int(files or 0) + self._replies[owner]

    def _is_old(self, stored: StoredFile) -> bool:
        return stored.expires_at is not None and stored.expires_at <= self._clock()

    def _remove_file(self, id: str) -> None:
        with self._writing() as database:
            database.execute("DELETE FROM files WHERE id = ?", (id,))
        self._path(id).unlink(missing_ok=True)

    def _path(self, id: str) -> Path:
        self._database  # noqa: B018 - makes the folder
        return self._folder / "files" / id

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._database as database:
            yield database

    @property
    def _database(self) -> sqlite3.Connection:
        with self._lock:
            if self._open_database is None:
                self._held = _locked(self._folder)
                self._open_database = _opened(self._folder)
            return self._open_database


def _locked(folder: Path) -> IO[bytes]:
    """A lock on the folder, until it is closed. Raises `ServerError` where another server has it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = (folder / "lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        message = f"Another server keeps its files in {folder}; name another folder with --files-dir."
        raise ServerError("overloaded", message) from None
    return lock


def _opened(folder: Path) -> sqlite3.Connection:
    """The database, in a folder that only its owner may read. One of another version is put aside."""
    (folder / "files").mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    path = folder / "batches.sqlite"
    path.touch(0o600)
    try:
        return _connected(path)
    except sqlite3.DatabaseError:
        shutil.move(path, f"{path}.unreadable")
        path.touch(0o600)
        return _connected(path)


def _connected(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, check_same_thread=False)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError("another version")
        database.executescript(_SCHEMA)
        database.execute(f"PRAGMA user_version = {_VERSION}")
        database.commit()
    except sqlite3.DatabaseError:
        database.close()
        raise
    return database


def _full(most: int) -> ServerError:
    return ServerError(
        "too_large",
        f"Your files and the answers of your batches take {most // MIB} MiB, which is the most (`--files-mb`); delete "
        "some.",
        "file",
    )

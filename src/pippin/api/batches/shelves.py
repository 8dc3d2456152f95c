"""Where files and batches are stored: in a folder of one server, or in the database that several servers share."""

import fcntl
import io
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Protocol

from pippin.api.databases.database import Database
from pippin.api.databases.postgres import Postgres
from pippin.api.databases.sqlite import Schema, SQLite, open_file
from pippin.core.errors import SHUTTING_DOWN, ServerError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

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
CREATE TABLE IF NOT EXISTS claims (
    batch TEXT PRIMARY KEY, holder TEXT NOT NULL, until REAL NOT NULL, cancelled INTEGER NOT NULL
) WITHOUT ROWID;
"""
PIECES: Final = """
CREATE TABLE IF NOT EXISTS pieces (
    file TEXT NOT NULL, number INTEGER NOT NULL, written REAL NOT NULL, body BLOB NOT NULL, PRIMARY KEY (file, number)
) WITHOUT ROWID;
"""
PIECE: Final = 1 << 18  # bytes
LEFT_OVER: Final = 86400.0
"""Seconds after which bytes without a file are taken for leftovers of a server that died while writing them."""
SCHEMA: Final = Schema(version=1, tables=TABLES)


class Shelf(Protocol):
    """Storage for files and batches. Calls block on a disk or a network."""

    @property
    def is_shared(self) -> bool:
        """Whether other servers use it too."""
        ...

    @property
    def exists(self) -> bool:
        """Whether anything was ever stored."""
        ...

    @property
    def database(self) -> Database:
        """The database with the tables of `TABLES`. Raises `ServerError` if another server has it."""
        ...

    def write(self, id: str, pieces: Iterable[bytes]) -> None:
        """Write the bytes of a file. If that fails or `pieces` raises, nothing of it remains. Raises `OSError`."""
        ...

    def open(self, id: str) -> IO[bytes]:
        """Raises `OSError` or `ServerError`."""
        ...

    def remove(self, id: str) -> None: ...

    def sweep(self) -> None:
        """Delete bytes that belong to no file of the database, and are too old to belong to one that is being
        written."""
        ...

    def close(self) -> None: ...


class Folder:
    """An SQLite database beside the files' bytes. Created for the first file, and then locked by this server."""

    is_shared = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = path / "files"
        self._database: SQLite | None = None
        self._held: IO[bytes] | None = None  # the lock on the folder
        self._is_closed = False

    @property
    def exists(self) -> bool:
        return (self._path / "batches.sqlite").exists()

    @property
    def database(self) -> Database:
        """See `Shelf.database`; makes the folder. Raises `ServerError` once it is closed."""
        # A thread that outlives its cancelled task would take the lock again, and nobody would release it.
        if self._is_closed:
            raise ServerError.of(SHUTTING_DOWN)
        if self._database is None:
            try:
                self._open()
            except OSError as error:
                message = f"The folder of --files-dir cannot be used: {error.strerror}."
                raise ServerError("overloaded", message) from None
        assert self._database is not None
        return self._database

    def _open(self) -> None:
        """Raises `ServerError` and `OSError`."""
        lock = _locked(self._path)
        try:
            self._path.chmod(0o700)
            self._files.mkdir(exist_ok=True, mode=0o700)
            self._database = open_file(self._path / "batches.sqlite", SCHEMA)
        except BaseException:
            lock.close()
            raise
        self._held = lock

    def write(self, id: str, pieces: Iterable[bytes]) -> None:
        path = self._file(id)
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                out.writelines(pieces)
                out.flush()
                os.fsync(out.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def open(self, id: str) -> IO[bytes]:
        return self._file(id).open("rb")

    def remove(self, id: str) -> None:
        self._file(id).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete the bytes of files that a server wrote, but died before it entered them in the database."""
        with self.database.transaction() as transaction:
            known = {name for (name,) in transaction.execute("SELECT id FROM files").fetchall()}
        for path in self._files.iterdir():
            if path.name not in known and path.stat().st_mtime < time.time() - LEFT_OVER:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        self._is_closed = True
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._held is not None:
            self._held.close()
            self._held = None

    def _file(self, id: str) -> Path:
        assert self._database is not None  # every file name comes from it
        return self._files / id


class Shared:
    """The database of several servers, which also holds the files' bytes, in pieces."""

    is_shared = True
    exists = True

    def __init__(self, database: Postgres) -> None:
        self.database: Database = database

    def write(self, id: str, pieces: Iterable[bytes]) -> None:
        try:
            for number, piece in enumerate(_cut(pieces)):
                with self.database.transaction() as transaction:
                    transaction.execute(
                        "INSERT INTO pieces VALUES (?, ?, ?, ?)", (id, number, time.time(), piece)
                    )
        except BaseException:
            self.remove(id)
            raise

    def open(self, id: str) -> IO[bytes]:
        return io.BufferedReader(PiecesReader(self.database, id), PIECE)

    def remove(self, id: str) -> None:
        with self.database.transaction() as transaction:
            transaction.execute("DELETE FROM pieces WHERE file = ?", (id,))

    def sweep(self) -> None:
        """Delete the pieces of files that a server began to write before it died."""
        with self.database.transaction(alone=True) as transaction:
            transaction.execute(
                "DELETE FROM pieces WHERE written < ? AND file NOT IN (SELECT id FROM files)",
                (time.time() - LEFT_OVER,),
            )

    def close(self) -> None:
        """Do nothing: the database has other users."""


class PiecesReader(io.RawIOBase):
    """Reads a file that is stored in pieces."""

    def __init__(self, database: Database, id: str) -> None:
        self._database = database
        self._id = id
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            raise io.UnsupportedOperation("the end of a file in pieces is found by reading")
        self._place = offset if whence == io.SEEK_SET else self._place + offset
        return self._place

    def readinto(self, buffer: "WriteableBuffer") -> int:
        number, skipped = divmod(self._place, PIECE)
        view = memoryview(buffer).cast("B")
        with self._database.transaction() as transaction:
            row = transaction.execute(
                "SELECT SUBSTR(body, ?, ?) FROM pieces WHERE file = ? AND number = ?",
                (skipped + 1, len(view), self._id, number),
            ).fetchone()
        if row is None:
            return 0
        found = bytes(row[0])
        view[: len(found)] = found
        self._place += len(found)
        return len(found)


def _cut(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of `PIECE` bytes, except the last."""
    held = bytearray()
    for piece in pieces:
        held += piece
        while len(held) >= PIECE:
            yield bytes(held[:PIECE])
            del held[:PIECE]
    if held:
        yield bytes(held)


def _locked(folder: Path) -> IO[bytes]:
    """A lock on the folder, held until the file is closed. Raises `ServerError` if another server holds it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = (folder / "lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        message = f"Another server keeps its files in {folder}; name another folder with --files-dir."
        raise ServerError("overloaded", message) from None
    return lock

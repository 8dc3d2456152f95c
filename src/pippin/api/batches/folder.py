"""The folder in which a server stores files and batches."""

import fcntl
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Final

from pippin.api.sqlite import Schema, SQLite, open_file
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


class Folder:
    """An SQLite database beside the files' bytes. Created for the first file, and then locked by this server.

    Calls block on a disk.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = path / "files"
        self._database: SQLite | None = None
        self._held: IO[bytes] | None = None  # the lock on the folder
        self._is_closed = False

    @property
    def exists(self) -> bool:
        """Whether anything was ever stored."""
        return (self._path / "batches.sqlite").exists()

    @property
    def database(self) -> SQLite:
        """The database with the tables of `TABLES`; makes the folder.

        Raises `ServerError` if another server has the folder, and once it is closed.
        """
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
        """Write the bytes of a file. If that fails or `pieces` raises, nothing of it remains. Raises `OSError`."""
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
        """Raises `OSError`."""
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

"""SQLite, in a file or in memory: opening, and setting aside of unusable files.

Tables are defined by the rooms that use them: `stored_responses/` and `batches/`.
"""

import logging
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from pippin.core.errors import ServerError

log = logging.getLogger(__name__)

TRY_AGAIN: Final = 1.0  # seconds
USELESS: Final = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
"""SQLite's codes for a file that is no database or is damaged. Any other error, such as a full disk, may pass."""


class Schema(NamedTuple):
    """The tables of a database: statements that create what does not exist yet."""

    version: int
    tables: str


class SQLite:
    """One connection, which threads use in turn."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        """`connection` was opened with `check_same_thread=False`; `name` is what the log calls it."""
        self.connection = connection
        # Newer Pythons warn of a connection that is collected open.
        weakref.finalize(self, connection.close)
        self._name = name
        self._lock = threading.RLock()
        self._fails = False

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction, which is rolled back if the block raises; no two run at the same time.

        Raises `ServerError` if the disk is full or fails.
        """
        with self._lock:
            changes = self.connection.total_changes
            try:
                with self.connection as connection:
                    yield connection
            except sqlite3.DatabaseError as error:
                if type(error) not in (sqlite3.OperationalError, sqlite3.DatabaseError):
                    raise  # a bug in the statement
                raise self._failed(error) from None
            # A transaction that only reads says nothing about a full disk.
            if self._fails and self.connection.total_changes > changes:
                self._fails = False
                log.warning("%s is read and written again.", self._name)

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What a statement finds, in a transaction of its own. Raises `ServerError`."""
        with self.transaction() as transaction:
            return transaction.execute(query, values).fetchall()

    def close(self) -> None:
        with self._lock:
            self.connection.close()

    def _failed(self, error: sqlite3.DatabaseError) -> ServerError:
        if not self._fails:
            self._fails = True
            log.error("%s cannot be read or written: %s.", self._name, error)
        message = f"What this server stores cannot be read or written now ({error}); try again in a moment."
        return ServerError("overloaded", message, retry_after=TRY_AGAIN)


def open_memory(schema: Schema) -> SQLite:
    """A database in this process's memory."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.execute("PRAGMA auto_vacuum = FULL")  # deleted rows free their memory
    connection.executescript(schema.tables)
    return SQLite(connection, "The memory of what is stored")


def open_file(path: Path, schema: Schema) -> SQLite:
    """The database in a file that only its owner can read; the file and its folder are created if missing.

    A file of an unknown version, or that is no database, is renamed to end in `.unreadable`. Raises `ServerError` if
    the file can't be opened.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _opened(path, schema)
        except _UselessError as error:
            aside = path.with_name(f"{path.name}.unreadable")
            path.replace(aside)
            log.warning("%s %s: it was put aside as %s, and a new one is begun.", path, error, aside.name)
            return _opened(path, schema)
    except (sqlite3.DatabaseError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ServerError("overloaded", f"The database {path} cannot be opened: {why}.") from None


class _UselessError(Exception):
    """This version can't use a file."""


def _opened(path: Path, schema: Schema) -> SQLite:
    """Raises `_UselessError`, `sqlite3.DatabaseError` and `OSError`."""
    path.touch(0o600)
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, schema.version):
            raise _UselessError(f"is of version {version}, which this Pippin cannot read")
        # One transaction makes all or nothing of a new database. What there is is opened without a write: disks fill.
        begun = f"PRAGMA user_version = {schema.version};" if version == 0 else ""
        connection.executescript(f"BEGIN; {schema.tables}; {begun} COMMIT")
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.DatabaseError) and error.sqlite_errorcode in USELESS:
            raise _UselessError(f"is no database, or is damaged ({error})") from None
        raise
    return SQLite(connection, str(path))

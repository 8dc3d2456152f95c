"""SQLite: a file, or memory, of one process."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SQLite:
    """One connection, which threads use in turn."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """`connection` was opened with `check_same_thread=False`."""
        self.connection = connection
        self._lock = threading.RLock()

    @contextmanager
    def transaction(self, *, alone: bool = False) -> Iterator[sqlite3.Connection]:
        """Every transaction is alone. Raises `sqlite3.Error`, as for a full disk."""
        with self._lock, self.connection as connection:
            yield connection

    def close(self) -> None:
        with self._lock:
            self.connection.close()

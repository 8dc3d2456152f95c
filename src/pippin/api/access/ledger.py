"""Limits that all API processes of a server count together: in a file of SQLite."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pippin.api.access.limits import REMEMBERED, Bucket, What, brought_up_to_date

LOCKED: Final = 10.0
"""Seconds to wait for another process, which holds the file for some microseconds, or until it is dead."""
FORGET_EVERY: Final = 256  # new callers between two looks at how many there are
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS buckets (
    what TEXT NOT NULL, account TEXT NOT NULL, size INTEGER NOT NULL, level REAL NOT NULL, filled REAL NOT NULL,
    PRIMARY KEY (what, account)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS running (process INTEGER PRIMARY KEY, requests INTEGER NOT NULL);
"""


class SharedLedger:
    """The ledger of one of several API processes: a file of SQLite, which lives as long as the server.

    Times are those of a clock that all processes of the machine share, as `time.monotonic` is. Nothing is forced to the
    disk, for a machine that fails takes the server with it. A process that dies leaves no change half done.
    """

    def __init__(self, path: Path, process: int) -> None:
        """`process`: the number of this one, which no other has at the same time."""
        self._process = process
        self._own = 0
        self._new = 0
        self._database = sqlite3.connect(path, timeout=LOCKED, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.executescript(_SCHEMA)

    @contextmanager
    def bucket(self, what: What, account: str, size: int, now: float) -> Iterator[Bucket]:
        with self._changing():
            query = "SELECT size, level, filled FROM buckets WHERE what = ? AND account = ?"
            row = self._database.execute(query, (what, account)).fetchone()
            if row is None:
                self._forget_some(what)
            bucket = Bucket(size, size, now) if row is None else Bucket(*row)
            brought_up_to_date(bucket, size, max(now, bucket.filled))
            yield bucket
            self._database.execute(
                "INSERT OR REPLACE INTO buckets VALUES (?, ?, ?, ?, ?)",
                (what, account, bucket.size, bucket.level, bucket.filled),
            )

    def enter(self, most: int | None) -> bool:
        if most is None:
            self._own += 1
            return True
        with self._changing():
            if self._all() >= most:
                return False
            self._own += 1
            self._write()
        return True

    def leave(self, most: int | None) -> None:
        self._own -= 1
        if most is not None:
            with self._changing():
                self._write()

    def running(self, most: int | None) -> int:
        return self._own if most is None else self._all()

    def forget(self, process: int) -> None:
        """Forget the running requests of a process that has died."""
        with self._changing():
            self._database.execute("DELETE FROM running WHERE process = ?", (process,))

    def close(self) -> None:
        self._database.close()

    def _all(self) -> int:
        query = "SELECT COALESCE(SUM(requests), 0) FROM running WHERE process != ?"
        (others,) = self._database.execute(query, (self._process,)).fetchone()
        return int(others) + self._own

    def _write(self) -> None:
        self._database.execute("INSERT OR REPLACE INTO running VALUES (?, ?)", (self._process, self._own))

    def _forget_some(self, what: What) -> None:
        self._new += 1
        if self._new % FORGET_EVERY:
            return
        self._database.execute(
            "DELETE FROM buckets WHERE what = ? AND account NOT IN "
            "(SELECT account FROM buckets WHERE what = ? ORDER BY filled DESC LIMIT ?)",
            (what, what, REMEMBERED),
        )

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A transaction that holds the file from its beginning; it is undone where the block raises."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

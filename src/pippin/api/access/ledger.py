"""Limits that several processes count together, in an SQLite file."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar, get_args

from pippin.api.access.limits import REMEMBERED, Bucket, Draw, What
from pippin.core.errors import ServerError

LOCKED: Final = 10.0
"""Seconds to wait for another process, which holds the file for some microseconds, or until it is dead. A process that
is stopped (SIGSTOP) is killed before that (`api/processes/owner.py`)."""
LOOK_AGAIN: Final = 0.001
"""Seconds from the first try to lock the file to the second; then twice as long each time, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE: Final = 0.02
TRY_AGAIN: Final = 1.0  # seconds, for clients
FORGET_EVERY: Final = 1024  # draws between two removals of the oldest callers
BUCKETS: Final = """
CREATE TABLE IF NOT EXISTS buckets (
    what TEXT NOT NULL, account TEXT NOT NULL, size INTEGER NOT NULL, level REAL NOT NULL, filled REAL NOT NULL,
    PRIMARY KEY (what, account)
) WITHOUT ROWID;
"""
_RUNNING: Final = """
CREATE TABLE IF NOT EXISTS running (process INTEGER PRIMARY KEY, requests INTEGER NOT NULL);
"""


# One statement creates the bucket, or finds it and locks it until the transaction ends.
_FIND: Final = """INSERT INTO buckets VALUES (?, ?, ?, ?, ?) ON CONFLICT (what, account) DO UPDATE
    SET what = excluded.what RETURNING size, level, filled"""


def drawn(transaction: sqlite3.Connection, draw: Draw) -> tuple[Bucket, bool]:
    """Take from a bucket in the database. Returns what `Ledger.take` returns."""
    new = (draw.what, draw.account, draw.size, draw.size, draw.now)
    bucket = Bucket(*transaction.execute(_FIND, new).fetchone())
    taken = bucket.take(draw)
    transaction.execute(
        "UPDATE buckets SET size = ?, level = ?, filled = ? WHERE what = ? AND account = ?",
        (bucket.size, bucket.level, bucket.filled, draw.what, draw.account),
    )
    return bucket, taken


def forget_oldest(transaction: sqlite3.Connection) -> None:
    """Forget all callers except the `REMEMBERED` most recently seen."""
    for what in get_args(What):
        transaction.execute(
            "DELETE FROM buckets WHERE what = ? AND account NOT IN "
            "(SELECT account FROM buckets WHERE what = ? ORDER BY filled DESC LIMIT ?)",
            (what, what, REMEMBERED),
        )


T = TypeVar("T")


class _NotNowError(Exception):
    """The file can't be changed at this moment; the text says why."""


class Turn:
    """Comes once in `FORGET_EVERY` calls."""

    def __init__(self) -> None:
        self._calls = 0

    def has_come(self) -> bool:
        self._calls += 1
        return self._calls % FORGET_EVERY == 0


class SharedLedger:
    """The ledger of one of several API processes: an SQLite file, which lives as long as the server.

    Times are by a clock that all processes of the machine share, such as `time.monotonic`. Nothing is synced to disk,
    because a machine that fails takes the server with it. A process that dies leaves no change half done. A process
    that is stopped in the middle of a change keeps the file locked; the others wait without blocking their event loop.
    """

    def __init__(self, path: Path, process: int) -> None:
        """`process`: the number of this process, which no other has at the same time."""
        self._process = process
        self._own = 0
        self._turn = Turn()
        # Changes that nobody awaits, held while another process has the file.
        self._late: list[Callable[[], object]] = []
        self._settling: asyncio.Task[None] | None = None
        self._line = asyncio.Lock()  # of those that wait, one tries
        self._database = sqlite3.connect(path, timeout=LOCKED, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.executescript(BUCKETS + _RUNNING)
        self._database.execute("PRAGMA busy_timeout = 0")  # from here on, `_patiently` waits instead

    async def take(self, draw: Draw) -> tuple[Bucket, bool]:
        return await self._soon(lambda: self._take(draw))

    def charge(self, draw: Draw) -> None:
        self._whenever(lambda: self._take(draw))

    def _take(self, draw: Draw) -> tuple[Bucket, bool]:
        if self._turn.has_come():
            forget_oldest(self._database)
        return drawn(self._database, draw)

    async def enter(self, most: int | None) -> bool:
        if most is None:
            self._own += 1
            return True
        entered = await self._soon(lambda: self._enter(most))
        self._own += entered
        return entered

    def _enter(self, most: int) -> bool:
        if self._all() >= most:
            return False
        self._write(self._own + 1)
        return True

    def leave(self, most: int | None) -> None:
        self._own -= 1
        if most is not None:
            self._whenever(lambda: self._write(self._own))

    def running(self, most: int | None) -> int:
        if most is None:
            return self._own
        try:
            # Readers wait for no writer, except one that recovers what a dead process left.
            return self._all()
        except sqlite3.OperationalError:
            return self._own

    def forget(self, process: int) -> None:
        """Forget the running requests of a process that has died."""
        query = "DELETE FROM running WHERE process = ?"
        self._whenever(lambda: self._database.execute(query, (process,)))

    def close(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
        self._database.close()

    def _all(self) -> int:
        query = "SELECT COALESCE(SUM(requests), 0) FROM running WHERE process != ?"
        (others,) = self._database.execute(query, (self._process,)).fetchone()
        return int(others) + self._own

    def _write(self, own: int) -> None:
        self._database.execute("INSERT OR REPLACE INTO running VALUES (?, ?)", (self._process, own))

    async def _soon(self, change: Callable[[], T]) -> T:
        """Make a change as soon as the file allows it. Raises `ServerError` if it does not within `LOCKED` seconds."""
        try:
            return self._now(change)
        except _NotNowError as error:
            why = error
        try:
            async with asyncio.timeout(LOCKED), self._line:
                return await self._patiently(change)
        except TimeoutError:
            message = f"The limits of this server cannot be counted now ({why}); try again in a moment."
            raise ServerError("overloaded", message, retry_after=TRY_AGAIN) from None

    def _whenever(self, change: Callable[[], object]) -> None:
        """Make a change now, or along with the next one that succeeds."""
        try:
            self._now(change)
        except _NotNowError:
            self._late.append(change)
            if self._settling is None or self._settling.done():
                self._settling = asyncio.create_task(self._patiently(lambda: None), name="limits")

    async def _patiently(self, change: Callable[[], T]) -> T:
        pause = LOOK_AGAIN
        while True:
            await asyncio.sleep(pause)
            with contextlib.suppress(_NotNowError):
                return self._now(change)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _now(self, change: Callable[[], T]) -> T:
        """Make the late changes and then this one, in one transaction, and return its result. An error undoes them all.
        Raises `_NotNowError` if another process has the file, or the disk is full."""
        database = self._database
        try:
            database.execute("BEGIN IMMEDIATE")
            for late in self._late:
                late()
            result = change()
            database.execute("COMMIT")
        except BaseException as error:
            if database.in_transaction:
                database.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise _NotNowError(str(error)) from None
            raise
        self._late.clear()
        return result

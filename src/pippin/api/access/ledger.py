"""Limits that several servers count together, in the database that they share."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, get_args

from pippin.api.access.limits import REMEMBERED, Bucket, Draw, Ledger, What
from pippin.api.databases.database import Database, Transaction
from pippin.core.errors import ServerError

FORGET_EVERY: Final = 1024  # draws between two removals of the oldest callers
THREADS: Final = 4  # threads that wait for a database
BUCKETS: Final = """
CREATE TABLE IF NOT EXISTS buckets (
    what TEXT NOT NULL, account TEXT NOT NULL, size INTEGER NOT NULL, level REAL NOT NULL, filled REAL NOT NULL,
    PRIMARY KEY (what, account)
) WITHOUT ROWID;
"""


# One statement creates the bucket, or finds it and locks it until the transaction ends.
_FIND: Final = """INSERT INTO buckets VALUES (?, ?, ?, ?, ?) ON CONFLICT (what, account) DO UPDATE
    SET what = excluded.what RETURNING size, level, filled"""


def drawn(transaction: Transaction, draw: Draw) -> tuple[Bucket, bool]:
    """Take from a bucket in the database. Returns what `Ledger.take` returns."""
    new = (draw.what, draw.account, draw.size, draw.size, draw.now)
    bucket = Bucket(*transaction.execute(_FIND, new).fetchone())
    taken = bucket.take(draw)
    transaction.execute(
        "UPDATE buckets SET size = ?, level = ?, filled = ? WHERE what = ? AND account = ?",
        (bucket.size, bucket.level, bucket.filled, draw.what, draw.account),
    )
    return bucket, taken


def forget_oldest(transaction: Transaction) -> None:
    """Forget all callers except the `REMEMBERED` most recently seen."""
    for what in get_args(What):
        transaction.execute(
            "DELETE FROM buckets WHERE what = ? AND account NOT IN "
            "(SELECT account FROM buckets WHERE what = ? ORDER BY filled DESC LIMIT ?)",
            (what, what, REMEMBERED),
        )


class Turn:
    """Comes once in `FORGET_EVERY` calls."""

    def __init__(self) -> None:
        self._calls = 0

    def has_come(self) -> bool:
        self._calls += 1
        return self._calls % FORGET_EVERY == 0


class ServersLedger:
    """The ledger of one of several servers: what callers use is counted for all of them, in the database they share.

    Running requests are limited per server, and counted by the server's own ledger. While the database can't be
    reached, that ledger counts everything, and all limits hold per server: no request fails or waits for long.
    """

    def __init__(self, database: Database, own: Ledger, clock: Callable[[], float] = time.time) -> None:
        """`database` has the table of `BUCKETS`. `clock`: one that the machines share, as far as their clocks agree."""
        self._database = database
        self._own = own
        self._clock = clock
        self._turn = Turn()
        self._threads = ThreadPoolExecutor(THREADS, "limits")  # that nobody else uses
        self._charges: set[asyncio.Task[tuple[Bucket, bool]]] = set()

    async def take(self, draw: Draw) -> tuple[Bucket, bool]:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._take, draw)
        except ServerError:  # the database has logged it
            return await self._own.take(draw)

    def charge(self, draw: Draw) -> None:
        task = asyncio.create_task(self.take(draw), name="charge")
        self._charges.add(task)
        task.add_done_callback(self._charges.discard)

    def enter(self, most: int | None) -> bool:
        return self._own.enter(most)

    def leave(self, most: int | None) -> None:
        self._own.leave(most)

    def running(self, most: int | None) -> int:
        return self._own.running(most)

    async def settled(self) -> None:
        """Wait until all charges are written."""
        await asyncio.gather(*self._charges)

    def _take(self, draw: Draw) -> tuple[Bucket, bool]:
        if self._turn.has_come():
            with self._database.transaction(alone=True) as transaction:
                forget_oldest(transaction)
        with self._database.transaction() as transaction:
            return drawn(transaction, replace(draw, now=self._clock()))

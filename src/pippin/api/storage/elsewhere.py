"""Which background responses run on any of several servers that share their state, and which are to be cancelled.

The server that runs a response renews its entry regularly. A server that has not done so for a while is gone, and its
responses have failed.
"""

import time
from collections.abc import Callable, Iterable
from typing import Final

from pippin.api.databases.database import Database

TABLE: Final = """
CREATE TABLE IF NOT EXISTS background (
    id TEXT PRIMARY KEY, until REAL NOT NULL, cancelled INTEGER NOT NULL
) WITHOUT ROWID;
"""
SAY_EVERY: Final = 1.0  # seconds
GONE_AFTER: Final = 15.0  # seconds; the database may be away for some of them


class RunningAnywhere:
    """Background responses by id; ids of responses are unique across all owners. Calls block on a network."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        """`database` has the table of `TABLE`."""
        self._database = database
        self._clock = clock

    def say(self, ids: Iterable[str]) -> list[str]:
        """Record that these responses run here; returns those that are to be cancelled."""
        until = self._clock() + GONE_AFTER
        cancelled = []
        with self._database.transaction() as transaction:
            for name in sorted(ids):  # in one order, so that two servers never deadlock
                row = transaction.execute(
                    "INSERT INTO background VALUES (?, ?, 0) ON CONFLICT (id) DO UPDATE SET until = excluded.until "
                    "RETURNING cancelled",
                    (name, until),
                ).fetchone()
                if row[0]:
                    cancelled.append(name)
            transaction.execute("DELETE FROM background WHERE until < ?", (self._clock() - GONE_AFTER,))
        return cancelled

    def ended(self, id: str) -> None:
        with self._database.transaction() as transaction:
            transaction.execute("DELETE FROM background WHERE id = ?", (id,))

    def runs(self, id: str) -> bool:
        with self._database.transaction() as transaction:
            query = "SELECT 1 FROM background WHERE id = ? AND until >= ?"
            return transaction.execute(query, (id, self._clock())).fetchone() is not None

    def cancel(self, id: str) -> bool:
        """Ask the server that runs a response to cancel it; returns whether any server does."""
        with self._database.transaction() as transaction:
            change = "UPDATE background SET cancelled = 1 WHERE id = ? AND until >= ?"
            return transaction.execute(change, (id, self._clock())).rowcount > 0

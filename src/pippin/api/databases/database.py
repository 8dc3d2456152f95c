"""What stores need of a database: statements in transactions, in the SQL that SQLite and PostgreSQL share.

The placeholder of a value is `?`. Schemas are written in SQLite's types, which are translated for PostgreSQL.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

Value = str | int | float | bytes | None


class Rows(Protocol):
    """What a statement has found or changed."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Transaction(Protocol):
    def execute(self, statement: str, values: Sequence[Value] = (), /) -> Rows: ...
    def executemany(self, statement: str, values: Iterable[Sequence[Value]], /) -> object: ...


class Database(Protocol):
    """Calls block on a disk or a network, and are made on a thread, except small ones to SQLite."""

    def transaction(self, *, alone: bool = False) -> AbstractContextManager[Transaction]:
        """A transaction, which is rolled back if the block raises. No two transactions that are `alone` run at the same
        time, on any server.

        Raises `ServerError` if the database can't be reached, read or written now.
        """
        ...

    def close(self) -> None: ...

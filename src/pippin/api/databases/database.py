"""What stores ask of a database: statements in transactions, in the SQL that SQLite and PostgreSQL share.

Values stand in statements as `?`. Schemas are written in SQLite's types; PostgreSQL is given its own names for them.
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
    """Calls wait for a disk or a network, and are made beside the event loop, but for SQLite's small ones."""

    def transaction(self, *, alone: bool = False) -> AbstractContextManager[Transaction]:
        """Statements that hold together: all or, where the block raises, none. Of those that are `alone` no two run at
        the same time, on any server.

        Raises `ServerError` where the database can't be reached, read or written now.
        """
        ...

    def close(self) -> None: ...

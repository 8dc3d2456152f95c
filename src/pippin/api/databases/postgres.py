"""PostgreSQL: the state that several servers share, reached over a network that may fail.

A database that can't be reached, or does not answer for some seconds, is tried again after a moment. Until then every
call is refused at once, so that requests do not pile up. Of an address, only the host is ever shown.
"""

import logging
import os
import re
import select
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from pippin.api.databases.database import Rows, Value
from pippin.core.errors import ServerError

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

log = logging.getLogger(__name__)

SCHEMES: Final = ("postgresql://", "postgres://")
MOST_CONNECTIONS: Final = 8  # of this process
CONNECT_WITHIN: Final = 2  # seconds
ANSWER_WITHIN: Final = 5.0  # seconds for a transaction
LOOK_EVERY: Final = 0.5  # seconds between checks for transactions that take too long
ASK_AGAIN_AFTER: Final = 1.0  # seconds
ALONE: Final = 0x50697070  # the advisory lock of transactions that run alone: "Pipp"
SCHEMA_LOCK: Final = ALONE + 1

# Schemas are written in SQLite's types; these are PostgreSQL's names for them.
_TYPES: Final = {
    r"\bINTEGER\b": "BIGINT",
    r"\bREAL\b": "DOUBLE PRECISION",
    r"\bBLOB\b": "BYTEA",
    r" WITHOUT ROWID": "",
}


class Postgres:
    """The database at an address, which is connected to on demand.

    A few connections are kept. psycopg's own pool is not used: it connects in the background at times of its own
    choice, so that callers would wait for a database that is already back.
    """

    def __init__(self, address: str) -> None:
        """`address` is a connection URI of libpq. Raises `ServerError` if it is none, or if psycopg is missing."""
        self.host = host_of(address)
        self._options = _options(address)
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._resting: list[Connection[Any]] = []  # the last used one at the end
        self._deadlines: dict[Connection[Any], float] = {}
        self._watching = threading.Condition()
        self._closed = False
        self._away_until = 0.0
        self._is_away = False
        threading.Thread(target=self._watch, name="postgres deadlines", daemon=True).start()

    def prepare(self, schema: str) -> None:
        """Create the tables that do not exist yet. Several servers may do so at once. Raises `ServerError`."""
        for name, own in _TYPES.items():
            schema = re.sub(name, own, schema)
        with self.transaction() as transaction:
            transaction.execute("SELECT pg_advisory_xact_lock(?)", (SCHEMA_LOCK,))
            for statement in filter(str.strip, schema.split(";")):
                transaction.execute(statement)

    @contextmanager
    def transaction(self, *, alone: bool = False) -> "Iterator[PostgresTransaction]":
        """See `Database.transaction`."""
        import psycopg

        self._check_there()
        if not self._places.acquire(timeout=ANSWER_WITHIN):
            raise self._away()
        connection: Connection[Any] | None = None
        try:
            connection = self._connected()
            with self._watched(connection), connection.transaction():
                transaction = PostgresTransaction(connection)
                if alone:
                    transaction.execute("SELECT pg_advisory_xact_lock(?)", (ALONE,))
                yield transaction
            self._reached()
        except (psycopg.OperationalError, psycopg.InternalError) as error:
            # An `InternalError` comes from a transaction that may not write, as on a replica.
            if not _is_of_network(error):
                raise ServerError("overloaded", _refused(error), retry_after=ASK_AGAIN_AFTER) from None
            raise self._lost(error) from None
        finally:
            self._give_back(connection)

    def close(self) -> None:
        with self._watching:
            self._closed = True
            self._watching.notify_all()
        self._close_resting()

    def _close_resting(self) -> None:
        with self._watching:
            for connection in self._resting:
                connection.close()
            self._resting.clear()

    def _connected(self) -> "Connection[Any]":
        """An idle connection, or a new one. Raises `psycopg.OperationalError`."""
        import psycopg

        while self._resting:
            with self._watching:
                connection = self._resting.pop() if self._resting else None
            if connection is not None and not _has_ended(connection):
                return connection
            if connection is not None:
                connection.close()
        # A pooler in between may give the connection to others, so it must not hold prepared statements.
        return psycopg.connect(**self._options, autocommit=True, prepare_threshold=None)

    def _give_back(self, connection: "Connection[Any] | None") -> None:
        with self._watching:
            if connection is not None:
                if self._closed or connection.closed:
                    connection.close()
                else:
                    self._resting.append(connection)
        self._places.release()

    def _check_there(self) -> None:
        """Refuse calls while the database is away, except one now and then that probes it. Raises `ServerError`."""
        with self._watching:
            now = time.monotonic()
            if now < self._away_until:
                raise self._away()
            if self._is_away:
                self._away_until = now + CONNECT_WITHIN + ANSWER_WITHIN

    def _reached(self) -> None:
        """Open the database to all callers again."""
        if self._is_away:
            self._is_away, self._away_until = False, 0.0
            log.warning("The state at %s is reached again.", self.host)

    def _lost(self, error: Exception) -> ServerError:
        self._away_until = time.monotonic() + ASK_AGAIN_AFTER
        self._close_resting()  # they lead to the same server, and each would have to time out
        if not self._is_away:
            self._is_away = True
            why = " ".join(str(error).split())
            if password := self._options.get("password"):
                why = why.replace(password, "***")
            log.error("The state at %s can't be reached (%s).", self.host, why)
        return self._away()

    def _away(self) -> ServerError:
        message = "What this server keeps with others can't be reached now; try again in a moment."
        return ServerError("overloaded", message, retry_after=ASK_AGAIN_AFTER)

    @contextmanager
    def _watched(self, connection: "Connection[Any]") -> Iterator[None]:
        """Cut the connection if the block takes too long: libpq waits forever for a machine that answers TCP and
        nothing else."""
        with self._watching:
            self._deadlines[connection] = time.monotonic() + ANSWER_WITHIN
            self._watching.notify_all()
        try:
            yield
        finally:
            with self._watching:
                self._deadlines.pop(connection, None)

    def _watch(self) -> None:
        with self._watching:
            while not self._closed:
                now = time.monotonic()
                for connection in [each for each, end in self._deadlines.items() if end < now]:
                    del self._deadlines[connection]
                    _cut(connection)
                self._watching.wait(LOOK_EVERY if self._deadlines else None)


class PostgresTransaction:
    """The statements of one transaction."""

    def __init__(self, connection: "Connection[Any]") -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Value] = (), /) -> Rows:
        return PostgresRows(self._connection.execute(_own(statement), _written(values)))

    def executemany(self, statement: str, values: Iterable[Sequence[Value]], /) -> object:
        with self._connection.cursor() as cursor:
            cursor.executemany(_own(statement), map(_written, values))
        return None


class PostgresRows:
    """What a statement has found or changed."""

    def __init__(self, cursor: "Cursor[Any]") -> None:
        self._cursor = cursor

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    def fetchone(self) -> Any:
        row = self._cursor.fetchone()
        return None if row is None else _read(row)

    def fetchall(self) -> list[Any]:
        return list(map(_read, self._cursor.fetchall()))


def host_of(address: str) -> str:
    """The host that an address names, without user, password and parameters."""
    authority, _, rest = re.sub("^[a-z]+://", "", address).partition("/")
    host = authority.partition("?")[0].rpartition("@")[2]
    # A password may hold a slash that should have been written as %2F.
    return host if host and "@" not in rest else "its address"


# A client's texts may hold U+0000, which PostgreSQL's can't: it is escaped as two characters, the first of which should
# occur in no text.
_MARK: Final = "\U0010ffff"


def _written(values: Sequence[Value]) -> list[Value]:
    return [
        value.replace(_MARK, _MARK + "1").replace("\0", _MARK + "0") if isinstance(value, str) else value
        for value in values
    ]


def _read(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        value.replace(_MARK + "0", "\0").replace(_MARK + "1", _MARK) if isinstance(value, str) else value
        for value in row
    )


def _own(statement: str) -> bytes:
    return statement.replace("%", "%%").replace("?", "%s").encode()


def _options(address: str) -> dict[str, Any]:
    """The connection parameters for libpq. Raises `ServerError`."""
    try:
        import psycopg
    except ImportError:
        message = "`--state` needs an extra: pip install 'pippin[postgres]'."
        raise ServerError("unsupported", message, "state") from None
    try:
        if not address.startswith(SCHEMES):
            raise psycopg.ProgrammingError
        given = psycopg.conninfo.conninfo_to_dict(address)
    except psycopg.Error:
        message = "`--state` must be postgresql://USER:PASSWORD@HOST:PORT/DATABASE."
        raise ServerError("invalid_request", message, "state") from None
    ours = {
        "connect_timeout": CONNECT_WITHIN,
        "keepalives_idle": CONNECT_WITHIN,
        "keepalives_interval": CONNECT_WITHIN,
        "keepalives_count": 3,
        "tcp_user_timeout": int(ANSWER_WITHIN * 1000),
        "application_name": "pippin",
    }
    return ours | given


def _has_ended(connection: "Connection[Any]") -> bool:
    """Whether an idle connection was closed by its server, which sends nothing on it otherwise."""
    if connection.closed:
        return True
    readable = select.poll()  # not select(), which takes no descriptor above 1023
    readable.register(connection.fileno(), select.POLLIN)
    return bool(readable.poll(0))


def _cut(connection: "Connection[Any]") -> None:
    """Cut a connection, so that the thread that waits for it gets an error."""
    with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as own:
        own.shutdown(socket.SHUT_RDWR)


def _is_of_network(error: Exception) -> bool:
    """Whether the database can't be reached (no SQLSTATE, or class 08) or is shutting down (57P..)."""
    state = getattr(error, "sqlstate", None)
    return state is None or state.startswith(("08", "57P"))


def _refused(error: Exception) -> str:
    return f"The state that servers share refused this ({type(error).__name__}); try again in a moment."

"""What tests of this room share: a PostgreSQL server."""

from collections.abc import Iterator

import pytest

from tests.api.databases.server import PostgresServer, postgres_server, programs


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer | None]:
    """A PostgreSQL server for all tests, which leave it running; None where it is not installed."""
    if programs() is None:
        yield None
        return
    with postgres_server() as server:
        yield server

"""What tests of this room share: patience with examples on a busy machine, and a PostgreSQL server."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.api.databases.server import PostgresServer, postgres_server, programs

settings.register_profile("busy", deadline=None)
settings.load_profile("busy")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer | None]:
    """A PostgreSQL server for all tests, which leave it running; None where it is not installed."""
    if programs() is None:
        yield None
        return
    with postgres_server() as server:
        yield server

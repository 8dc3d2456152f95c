"""The server that the tests of a file ask."""

from collections.abc import Iterator

import pytest

from tests.api.live_server import live_server


@pytest.fixture(scope="module")
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Plays the `SCRIPT` of the file."""
    with live_server(tmp_path_factory.mktemp("live"), request.module.SCRIPT) as found:
        yield found

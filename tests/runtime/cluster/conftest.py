"""A cluster that tests of a file share, with one node."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.cluster.nodes import free_port, joined, nodes, wait_for


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Ray makes sockets below its folder, and a path of more than 107 bytes is none for a socket.
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[str]:
    """HOST:PORT of the cluster."""
    pytest.importorskip("ray")
    found = f"127.0.0.1:{free_port()}"
    with joined(home, "--host", "127.0.0.1", "--port", found.rpartition(":")[2]):
        wait_for("the first node", lambda: nodes(home, found) == 1)
        yield found

"""A request leaves nothing to the collection of garbage, which would hold up the event loop when many end at once."""

import gc
import json
import socket
import time
from collections.abc import Iterator

import pytest

from tests.api.live_server import MODEL, live_server

REQUESTS = 20
OF_THE_LOOP = 8
"""Objects that asyncio's own event loop leaves of a connection; uvloop leaves none. Before, a request left 70."""
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "one two"}]}
LONG = {"model": MODEL, "messages": [{"role": "user", "content": "yew " * 2000}]}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with live_server(tmp_path_factory.mktemp("garbage"), {"gap": 0.001}) as address:
        gc.collect()
        gc.freeze()  # collections look through what comes after this alone, not through all that tests import
        yield int(address.rpartition(":")[2])


def request(body: object) -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + data


def ask(port: int, data: bytes, seconds: float | None) -> None:
    """Send bytes, and read what comes until the end; or hang up after so many seconds."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(data)
        if seconds is not None:
            time.sleep(seconds)
            return
        while connection.recv(1 << 16):
            pass


@pytest.mark.parametrize(
    ("data", "seconds"),
    [
        (request(CHAT), None),
        (request(CHAT | {"stream": True}), None),
        (request({"model": MODEL}), None),
        (request(LONG), 0.05),
        (request(LONG | {"stream": True}), 0.05),
        (request(LONG), 0.004),
        (request(LONG | {"stream": True}), 0.004),
        (request(LONG)[:1000], 0.05),
        (b"", 0.01),
        (b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", None),
    ],
    ids=[
        "whole",
        "stream",
        "refused",
        "left",
        "stream left",
        "left at the start",
        "stream left at the start",
        "left early",
        "silent",
        "health",
    ],
)
def test_what_a_request_held_is_free_when_it_has_ended(port: int, data: bytes, seconds: float | None) -> None:
    ask(port, data, seconds)
    time.sleep(0.3)
    gc.collect()
    gc.disable()
    try:
        for _ in range(REQUESTS):
            ask(port, data, seconds)
        time.sleep(0.3)
        assert gc.collect() <= OF_THE_LOOP * REQUESTS
    finally:
        gc.enable()

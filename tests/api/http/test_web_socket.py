"""WebSocket connections: how many bytes of their messages are held at once, and what a client hears who sends more."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from socket import create_connection
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from pippin.api.http import body
from tests.api.live_server import MODEL, live_server

SCRIPT: dict[str, Any] = {
    "rules": [{"when": {"user": "slow"}, "say": " ".join(["word"] * 2000), "gap": 0.05}]
}
ROOM = 1 << 20  # bytes of all bodies


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body, "LEAST_MEMORY", ROOM)
        patch.setattr(body, "LARGEST_BODIES", 0)
        with live_server(tmp_path_factory.mktemp("live"), SCRIPT) as found:
            yield found


def test_a_server_ends_in_order_while_a_client_closes(tmp_path: Path) -> None:
    """An error in the server's thread fails the test."""
    with contextlib.ExitStack() as stack, live_server(tmp_path, SCRIPT) as address:
        raw = stack.enter_context(create_connection(address_of(address), timeout=10))
        raw.sendall(
            b"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert b"101" in raw.recv(4096)
        raw.sendall(b"\x88\x80\0\0\0\0")  # a close frame; the connection stays half open
        assert raw.recv(4096)[:1] == b"\x88"


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def socket_of(address: str) -> ClientConnection:
    return connect(address.replace("http", "ws") + "/v1/responses", compression=None)


def event(text: str, size: int = 0, **fields: Any) -> str:
    """A message of at least `size` bytes: blanks count as anything else does."""
    return json.dumps({"type": "response.create", "model": MODEL, "input": text} | fields).ljust(size)


def answered(socket: ClientConnection) -> dict[str, Any]:
    while True:
        found: dict[str, Any] = json.loads(socket.recv(timeout=30))
        if found["type"] in ("response.completed", "error"):
            return found


def has_room(address: str) -> bool:
    try:
        with socket_of(address) as socket:
            socket.send(event("Hi", 200_000))
            return bool(answered(socket)["type"] == "response.completed")
    except ConnectionClosed:
        return False


def test_messages_that_wait_count_until_they_are_answered(address: str) -> None:
    with socket_of(address) as socket:
        for _ in range(20):  # one after the other they are many times the room
            socket.send(event("Hi", 120_000, store=False))
            assert answered(socket)["type"] == "response.completed"


def test_who_sends_more_than_there_is_room_for_is_told_so(address: str) -> None:
    with socket_of(address) as socket:
        socket.send(event("slow"))
        with pytest.raises(ConnectionClosed) as closed:
            for _ in range(10):
                socket.send(event("Hi", 120_000))
            while True:
                socket.recv(timeout=30)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
        assert "send fewer at a time" in closed.value.rcvd.reason
    end = time.monotonic() + 20
    while not has_room(address):  # what it held is free again once its connection has ended
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_message_that_never_ends_counts_as_it_arrives(address: str) -> None:
    with socket_of(address) as socket:
        header = b"\x81\xff" + (64 << 20).to_bytes(8) + bytes(4)
        with pytest.raises((ConnectionClosed, OSError)):
            socket.socket.sendall(header)
            for _ in range(64):
                socket.socket.sendall(os.urandom(64 << 10))
            while True:
                socket.recv(timeout=30)


def test_what_a_connection_remembers_counts(address: str) -> None:
    item = {"role": "user", "content": "Hi", "note": "x" * 120_000}
    with socket_of(address) as socket:
        last: str | None = None
        for _ in range(8):
            socket.send(event("", store=False, previous_response_id=last, input=[item]))
            found = answered(socket)
            if found["type"] == "error":
                break
            last = found["response"]["id"]
        assert found["type"] == "error", "eight turns of 120 kB were held in half of a MiB"
        assert found["error"]["code"] in ("previous_response_not_found", "overloaded")
        socket.send(event("again", store=False))
        assert answered(socket)["type"] == "response.completed"


def test_compressed_messages_are_not_offered(address: str) -> None:
    with connect(address.replace("http", "ws") + "/v1/responses") as socket:
        assert socket.protocol.extensions == []


def test_a_message_that_is_too_large_is_one_line_in_the_log(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    with socket_of(address) as socket, pytest.raises(ConnectionClosed) as closed:
        socket.send(b"x" * (65 << 20))
        socket.recv(timeout=30)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code in (1009, 1013)

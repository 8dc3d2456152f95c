"""Requests that are almost right, over a socket: each is answered in time, below 500 and in the dialect's words."""

import http.client
import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from pippin.core.logs import OURS, set_level
from tests.api.live_server import live_server
from tests.fuzz.budget import seconds_of_requests
from tests.fuzz.near_valid import RIGHT, Right, Sent, damaged, sent

PATIENCE: Final = 10.0
"""Seconds in which every request is answered on a machine that is shared."""
GIVEN_UP: Final = 1.0
"""Seconds without a byte after which the server gives a body up."""
ABOUT_THE_WHOLE: Final = ("The request body", "Send the body")
"""How a refusal begins that no field is to blame for."""


class Reply(NamedTuple):
    status: int
    body: bytes


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("live")
    files = str(folder / "files")
    with live_server(folder, {"rules": []}, body_timeout=GIVEN_UP, files_dir=files) as found:
        yield found


def connection(address: str) -> socket.socket:
    place = urlsplit(address)
    assert place.hostname is not None
    return socket.create_connection((place.hostname, place.port or 80), timeout=PATIENCE)


def reply_of(talk: socket.socket) -> Reply:
    reply = http.client.HTTPResponse(talk)
    reply.begin()
    return Reply(reply.status, reply.read())


def ask(address: str, asked: Sent) -> Reply:
    with closing(connection(address)) as talk:
        talk.sendall(asked.wire)
        return reply_of(talk)


def check(asked: Sent, reply: Reply) -> None:
    """That a reply is a success, or a refusal in the shape of its dialect that names a field of the address."""
    assert reply.status < 500, (asked.wire[:2000], reply)
    if reply.status < 400:
        return
    told = json.loads(reply.body)
    match told:
        case {"error": str(message)}:
            assert asked.right.path.startswith("/api/")
        case {"type": "error", "error": {"type": str(), "message": str(message)}}:
            assert asked.right.path.startswith("/v1/messages")
        case {"error": {"message": str(message), "type": str(), "param": param}}:
            whole = message.startswith(ABOUT_THE_WHOLE)
            assert param or whole or reply.status not in (400, 422), (asked.wire[:2000], told)
        case {"rejected": {**refused}} if refused:  # by name
            assert asked.right.path == "/v1/settings"
            message = "refused"
        case _:
            raise AssertionError((asked.wire[:2000], told))
    assert message


def attack(address: str, right: Right, examples: int, *, is_repeatable: bool = False) -> None:
    before = ask(address, sent(right))
    assert before.status == 200, before

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=is_repeatable,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(asked=damaged(right))
    def one(asked: Sent) -> None:
        check(asked, ask(address, asked))

    one()
    assert ask(address, sent(right)).status == 200


@pytest.mark.parametrize("right", RIGHT, ids=lambda right: right.name)
def test_no_request_that_is_almost_right_gives_a_5xx(address: str, right: Right) -> None:
    attack(address, right, 6, is_repeatable=True)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("right", RIGHT, ids=lambda right: right.name)
def test_hundreds_of_requests_that_are_almost_right_give_no_5xx(address: str, right: Right) -> None:
    seconds = seconds_of_requests(len(RIGHT))
    ends = time.monotonic() + (seconds or 0)
    attack(address, right, 500 if seconds is None else 20)
    while time.monotonic() < ends:
        attack(address, right, 20)


NO_OBJECTS: Final = (b"[]", b'"a": 1}', b"1", b"null", b"{]", b"\xff")


@pytest.mark.parametrize("body", NO_OBJECTS, ids=repr)
def test_a_body_that_is_no_object_is_refused_as_a_whole_at_every_address(address: str, body: bytes) -> None:
    for right in RIGHT:
        if right.files:
            continue
        asked = Sent(right, body, "application/json")
        reply = ask(address, asked)
        assert reply.status == 400, (right.name, reply)
        check(asked, reply)


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
def test_bodies_that_stop_are_408_at_every_address(address: str, is_chunked: bool) -> None:
    """All of them at once, while the server is well."""
    asked = [sent(right) for right in RIGHT]
    talks = [connection(address) for _ in asked]
    try:
        for talk, each in zip(talks, asked, strict=True):
            talk.sendall(each.stopped(is_chunked))
        with closing(connection(address)) as talk:
            talk.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert reply_of(talk).status == 200
        for talk, each in zip(talks, asked, strict=True):
            reply = reply_of(talk)
            assert reply.status == 408, (each.right.name, reply)
            check(each, reply)
    finally:
        for talk in talks:
            talk.close()


def test_a_damaged_form_writes_nothing_to_the_log(address: str, caplog: pytest.LogCaptureFixture) -> None:
    right = next(each for each in RIGHT if each.files)
    whole = sent(right)
    levels = {name: logging.getLogger(name).level for name in ("", OURS, "python_multipart")}
    set_level("info")
    try:
        reply = ask(address, Sent(right, b"x" + whole.body, whole.content_type))
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
    assert reply.status == 400
    assert not [record.name for record in caplog.records if record.levelno >= logging.WARNING]


# WebSockets, below the protocol

OPENING: Final = (
    b"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
MASK: Final = bytes(4)  # leaves a payload as it is


def frame(opcode: int, payload: bytes, *, flags: int = 0x80, length: bytes | None = None) -> bytes:
    size = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
    return bytes([flags | opcode]) + (length or size) + MASK + payload


BROKEN: Final = {
    "reserved opcode": frame(0x3, b"x"),
    "reserved bits": frame(0x1, b"{}", flags=0xF0),
    "no mask": b"\x81\x02{}",
    "no UTF-8": frame(0x1, b"\xff\xfe"),
    "a continuation of nothing": frame(0x0, b"{}"),
    "a message within a message": frame(0x1, b"{", flags=0) + frame(0x1, b"{}"),
    "a ping of 126 bytes": frame(0x9, b"x" * 126),
    "a ping in pieces": frame(0x9, b"x", flags=0),
    "a close of one byte": frame(0x8, b"x"),
    "a close with an unknown code": frame(0x8, b"\x00\x01"),
    "a frame of 2^62 bytes": frame(0x1, b"{", length=b"\xff" + (1 << 62).to_bytes(8, "big")),
    "a frame of 2^63 bytes": frame(0x1, b"{", length=b"\xff" + (1 << 63).to_bytes(8, "big")),
    "HTTP": OPENING,
}
HALF: Final = {
    "half a head": b"\x81",
    "half a frame": frame(0x1, b"{}", length=b"\xfe\x01\x00"),
    "half a message": frame(0x1, b'{"type":', flags=0) * 50,
    "nothing": b"",
}


def opened(address: str) -> socket.socket:
    """A connection for responses that is open."""
    talk = connection(address)
    talk.sendall(OPENING)
    came = b""
    while b"\r\n\r\n" not in came:
        came += talk.recv(65536)
    return talk


def rest_of(talk: socket.socket) -> bytes:
    """What comes until the server ends the connection."""
    came = b""
    try:
        while piece := talk.recv(65536):
            came += piece
    except ConnectionResetError:
        pass
    return came


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_frame_ends_its_connection_and_no_other(address: str, kind: str) -> None:
    with closing(opened(address)) as other, closing(opened(address)) as talk:
        talk.sendall(BROKEN[kind])
        assert b"internal_error" not in rest_of(talk)
        other.sendall(frame(0x1, b'{"type": "nobody knows"}'))
        assert b"error" in other.recv(65536)


@pytest.mark.parametrize("kind", HALF)
def test_a_connection_that_goes_amid_a_frame_leaves_others_alone(address: str, kind: str) -> None:
    with closing(opened(address)) as other:
        for _ in range(5):
            with closing(opened(address)) as talk:
                talk.sendall(HALF[kind])
        other.sendall(frame(0x1, b'{"type": "nobody knows"}'))
        assert b"error" in other.recv(65536)

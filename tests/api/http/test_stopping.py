"""A server that stops: what runs may end, and what does not is ended with an error in the words of its API."""

import json
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.api.live_server import MODEL, Live, stoppable_server

SCRIPT: dict[str, Any] = {
    "gap": 0.05,
    "rules": [
        {"when": {"user": "endless"}, "say": "word " * 2000},
        {"when": {"user": "slow"}, "say": "word " * 10},
    ],
}
GOING_AWAY = 1001
MESSAGE = "The server is shutting down"


@pytest.fixture
def live(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Live]:
    with caplog.at_level(logging.INFO), stoppable_server(tmp_path, SCRIPT, drain=0.5) as live:
        yield live
    assert not [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Live]:
    with stoppable_server(tmp_path, SCRIPT, drain=20.0) as live:
        yield live


def chat(said: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": said}], **fields}


STREAMS = [
    ("/v1/chat/completions", chat("endless", stream=True), "error"),
    (
        "/v1/completions",
        {"model": MODEL, "prompt": "word " * 2000, "max_tokens": 2000, "stream": True},
        "error",
    ),
    ("/v1/responses", {"model": MODEL, "input": "endless", "stream": True}, "response.failed"),
    ("/v1/messages", chat("endless", stream=True, max_tokens=5000), "overloaded_error"),
    ("/api/chat", chat("endless"), "error"),
]


@pytest.mark.parametrize(("path", "body", "word"), STREAMS, ids=[path for path, *_ in STREAMS])
def test_a_stream_beyond_the_drain_ends_with_an_error_of_its_api(
    live: Live, path: str, body: dict[str, Any], word: str
) -> None:
    with httpx.stream("POST", live.address + path, json=body, timeout=20) as reply:
        pieces = reply.iter_text()
        text = next(pieces)
        live.stop()
        text += "".join(pieces)
    assert reply.status_code == 200
    assert MESSAGE in text
    assert word in text


def test_a_whole_answer_beyond_the_drain_is_refused_with_a_sentence(live: Live) -> None:
    asked = json.dumps(chat("endless")).encode()
    with sent(live, asked, len(asked)) as connection:
        time.sleep(0.3)  # until it runs
        live.stop()
        head, _, body = everything(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 10" in head
    assert json.loads(body)["error"]["message"].startswith(MESSAGE)


def test_a_request_that_is_still_being_sent_when_the_drain_ends_is_refused_with_a_sentence(
    live: Live,
) -> None:
    with sent(live, b"{", 100) as connection:
        live.stop()
        head, _, body = everything(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert json.loads(body)["error"]["message"].startswith(MESSAGE)


def sent(live: Live, body: bytes, length: int) -> socket.socket:
    host, port = live.address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    connection.sendall(f"{head}content-length: {length}\r\nexpect: 100-continue\r\n\r\n".encode())
    assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"  # the server waits for the body
    connection.sendall(body)
    return connection


def everything(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


def socket_of(live: Live) -> ClientConnection:
    return connect(live.address.replace("http", "ws") + "/v1/responses")


def rest_of(connection: ClientConnection) -> tuple[list[dict[str, Any]], int]:
    """The events until the server closes the connection, and the code with which it does."""
    events = []
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            events.append(json.loads(connection.recv(timeout=20)))
    assert closed.value.rcvd is not None
    return events, closed.value.rcvd.code


def ask(connection: ClientConnection, said: str) -> None:
    """Ask for an answer, and wait for its first words."""
    connection.send(json.dumps({"type": "response.create", "model": MODEL, "input": said}))
    while json.loads(connection.recv(timeout=20))["type"] != "response.output_text.delta":
        pass


def test_a_web_socket_on_which_nothing_goes_on_is_closed_at_once(patient: Live) -> None:
    with socket_of(patient) as connection:
        time.sleep(0.2)
        began = time.monotonic()
        patient.stop()
        _, code = rest_of(connection)
    assert code == GOING_AWAY
    assert time.monotonic() - began < 5


def test_an_answer_on_a_web_socket_may_end_within_the_drain(patient: Live) -> None:
    with socket_of(patient) as connection:
        ask(connection, "slow")
        patient.stop()
        events, code = rest_of(connection)
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["status"] == "completed"
    assert code == GOING_AWAY


def test_an_answer_on_a_web_socket_beyond_the_drain_ends_with_an_error(live: Live) -> None:
    with socket_of(live) as connection:
        ask(connection, "endless")
        live.stop()
        events, code = rest_of(connection)
    assert events[-1]["response"]["status"] == "failed"
    assert MESSAGE in json.dumps(events[-1])
    assert code == GOING_AWAY


def test_a_second_stop_ends_what_runs_at_once_and_in_order(patient: Live) -> None:
    with httpx.stream(
        "POST", f"{patient.address}/v1/chat/completions", json=STREAMS[0][1], timeout=20
    ) as reply:
        pieces = reply.iter_text()
        text = next(pieces)
        began = time.monotonic()
        patient.stop()
        patient.stop()
        text += "".join(pieces)
    assert MESSAGE in text
    assert time.monotonic() - began < 5


def test_a_response_in_the_background_may_end_within_the_drain(tmp_path: Path) -> None:
    stored = tmp_path / "responses.sqlite"
    body = {"model": MODEL, "input": "slow", "background": True}
    with stoppable_server(tmp_path, SCRIPT, drain=20.0, response_store=str(stored)) as live:
        response = httpx.post(f"{live.address}/v1/responses", json=body, timeout=20).json()
        live.stop()
        live.wait()
    with stoppable_server(tmp_path, SCRIPT, response_store=str(stored)) as live:
        response = httpx.get(f"{live.address}/v1/responses/{response['id']}", timeout=20).json()
    assert response["status"] == "completed", response["error"]

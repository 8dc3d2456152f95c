"""Reported: bodies, headers and limits that clients send, and servers like this one refused."""

import gzip
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.api.live_server import MODEL, live_server

BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
ORIGIN = "http://localhost:5173"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with live_server(tmp_path_factory.mktemp("live"), {"rules": []}, allowed_origins=(ORIGIN,)) as found:
        yield found


def post(address: str, body: bytes, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
    given = {
        "content-type": "application/json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return httpx.post(address + path, content=body, headers=given, timeout=30)


def said(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


def test_row_32_a_stream_to_http_1_0_has_no_chunks(address: str) -> None:
    body = json.dumps({**BODY, "stream": True}).encode()
    place = urlsplit(address)
    head = (
        f"POST /v1/chat/completions HTTP/1.0\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=30) as client:
        client.sendall(head.encode() + body)
        received = b"".join(iter(lambda: client.recv(65536), b""))
    headers, _, answer = received.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in headers.lower()
    assert answer.startswith(b"data: {")
    assert answer.endswith(b"data: [DONE]\n\n")


def test_row_33_a_compressed_body_is_read_or_its_coding_is_named(address: str) -> None:
    body = json.dumps(BODY).encode()
    assert said(post(address, gzip.compress(body), content_encoding="gzip")) == "Hello"
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat", "/v1/embeddings"):
        for coding in ("br", "compress", "gzip, br"):
            refused = post(address, b"anything", path, content_encoding=coding)
            assert refused.status_code == 415
            assert f"'{coding}'" in refused.text
            assert "gzip" in refused.headers["accept-encoding"]


def test_row_34_a_named_origin_may_ask_for_a_private_network(address: str) -> None:
    asked = {
        "origin": ORIGIN,
        "access-control-request-method": "POST",
        "access-control-request-private-network": "true",
    }
    reply = httpx.options(f"{address}/v1/chat/completions", headers=asked)
    assert reply.status_code < 300
    assert reply.headers["access-control-allow-private-network"] == "true"
    other = httpx.options(
        f"{address}/v1/chat/completions", headers=asked | {"origin": "http://elsewhere.example"}
    )
    assert "access-control-allow-origin" not in other.headers


def test_row_35_a_byte_order_mark_is_no_part_of_the_body(address: str) -> None:
    assert said(post(address, b"\xef\xbb\xbf" + json.dumps(BODY).encode())) == "Hello"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/v0/chat/completions"])
def test_row_39_minus_one_is_no_limit(address: str, path: str) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        assert said(post(address, json.dumps({**BODY, name: -1}).encode(), path)) == "Hello"


@pytest.mark.parametrize("path", ["/v1/completions", "/api/v0/completions"])
def test_row_39_minus_one_is_no_limit_of_a_completion(address: str, path: str) -> None:
    reply = post(address, json.dumps({"model": MODEL, "prompt": "Hello", "max_tokens": -1}).encode(), path)
    assert reply.status_code == 200


def test_row_41_lm_studios_address_answers_with_its_figures(address: str) -> None:
    reply = post(address, json.dumps(BODY).encode(), "/api/v0/chat/completions").json()
    assert reply["stats"]["tokens_per_second"] > 0
    assert reply["stats"]["stop_reason"] == "eosFound"
    assert reply["model_info"]["context_length"] == 4096
    assert reply["runtime"]["name"] == "pippin"

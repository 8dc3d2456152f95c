"""Threats 42 to 73: requests that ask for too much or for nonsense are refused by name, and quickly."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.api.fakes import MODEL, FakeService, application, client_of

CHAT: dict[str, Any] = {"model": MODEL.id, "messages": [{"role": "user", "content": "Hi"}]}
TEXT: dict[str, Any] = {"model": MODEL.id, "prompt": "Hi"}
SECRET = "my-most-secret-prompt"


def post(path: str, content: bytes, **headers: str) -> httpx.Response:
    async def main() -> httpx.Response:
        async with client_of(application(FakeService(), api_keys=("sk-secret-key",))) as client:
            own = {"content-type": "application/json", "authorization": "Bearer sk-secret-key"}
            return await client.post(path, content=content, headers=own | headers)

    return asyncio.run(main())


def chat(**fields: Any) -> bytes:
    return json.dumps(CHAT | fields).encode()


def text(**fields: Any) -> bytes:
    return json.dumps(TEXT | fields).encode()


def many(item: bytes, count: int) -> bytes:
    """A JSON list."""
    return b"[" + b",".join([item] * count) + b"]"


def with_field(body: bytes, name: str, value: bytes) -> bytes:
    return body[:-1] + b', "' + name.encode() + b'": ' + value + b"}"


# Millions of values are made by the test that sends them: each process collects all tests.
HOSTILE: dict[str, tuple[str, bytes | Callable[[], bytes]]] = {
    "42 n": ("/v1/chat/completions", chat(n=1_000_000)),
    "42 best_of": ("/v1/completions", text(best_of=1_000_000)),
    "43 no messages": ("/v1/chat/completions", chat(messages=[])),
    "43 empty list": ("/v1/completions", text(prompt=[])),
    "43 list of empty lists": ("/v1/completions", text(prompt=[[]])),
    "44 template": ("/v1/chat/completions", chat(chat_template="{{ x }}")),
    "48 type": (
        "/v1/chat/completions",
        chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": 5}}}]),
    ),
    "48 name": ("/v1/chat/completions", chat(tools=[{"type": "function", "function": {"name": "../f"}}])),
    "52 deep": ("/v1/chat/completions", b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "52 a million lists": (
        "/v1/chat/completions",
        lambda: with_field(chat(), "metadata", b'{"a": ' + many(b"[]", 1_000_000) + b"}"),
    ),
    "52 a million fields": (
        "/v1/messages",
        lambda: b"{" + b",".join([b'"k%d": 1' % number for number in range(600_000)]) + b"}",
    ),
    "52 a million numbers": (
        "/v1/chat/completions",
        lambda: with_field(chat(), "metadata", b'{"a": ' + many(b"1", 1_100_000) + b"}"),
    ),
    "52 millions of texts": (
        "/v1/completions",
        lambda: with_field(text(), "unknown", many(b'""', 3_000_000)),
    ),
    "52 NaN": ("/v1/chat/completions", b'{"model":"m","messages":[],"temperature":NaN}'),
    "52 infinite": ("/v1/chat/completions", b'{"model":"m","messages":[],"temperature":1e999}'),
    "54 negative": ("/v1/chat/completions", chat(logit_bias={"-1": 1})),
    "54 no number": ("/v1/chat/completions", chat(logit_bias={"a": 1})),
    "54 too much": ("/v1/chat/completions", chat(logit_bias={"1": 1e9})),
    "55 logprobs": ("/v1/chat/completions", chat(logprobs=True, top_logprobs=1_000_000)),
    "55 stop ids": ("/v1/chat/completions", chat(stop_token_ids=[-5])),
    "55 top_k": ("/v1/chat/completions", chat(top_k=-7)),
    "57 salt": ("/v1/chat/completions", chat(cache_salt="x" * 100_000)),
    "69 tokens": ("/v1/chat/completions", chat(max_tokens=10**30)),
    "71 ids": (
        "/v1/detokenize",
        lambda: with_field(b'{"model": "%s"}' % MODEL.id.encode(), "tokens", many(b"1", 1_000_001)),
    ),
    "64 embeddings": ("/v1/completions", text(prompt_embeds="AAAA")),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_request_is_refused_by_name_and_quickly(name: str) -> None:
    path, body = HOSTILE[name]
    content = body if isinstance(body, bytes) else body()
    began = time.process_time()
    reply = post(path, content)
    assert reply.status_code in (400, 413), (reply.status_code, reply.text[:300])
    assert len(reply.json()["error"]["message"]) < 1000
    assert time.process_time() - began < 5


def test_duplicate_keys_and_a_very_long_string_are_read_as_ever() -> None:
    assert post("/v1/chat/completions", chat()[:-1] + b', "model": "org/model-a"}').status_code == 200
    long = chat(messages=[{"role": "user", "content": "x" * (10 << 20)}])
    assert post("/v1/chat/completions", long).status_code == 200


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_keys_and_prompts_are_in_no_log_and_no_error(level: int, caplog: pytest.LogCaptureFixture) -> None:
    """Threat 18."""
    with caplog.at_level(level):
        replies = [
            post("/v1/chat/completions", chat(messages=[{"role": "user", "content": SECRET}])),
            post("/v1/chat/completions", chat(messages=[{"role": "wizard", "content": SECRET}])),
            post("/v1/chat/completions", chat(messages=SECRET)),
            post("/v1/chat/completions", b'{"model": "' + SECRET.encode()),
            post("/v1/chat/completions", chat(), authorization=f"Bearer {SECRET}"),
        ]
    assert SECRET not in caplog.text
    assert "sk-secret-key" not in caplog.text
    for reply in replies[1:]:
        assert reply.status_code >= 400
        assert SECRET not in reply.text
        assert "/src/" not in reply.text


def test_an_unexpected_failure_tells_the_client_nothing_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Threats 18 and 19."""

    async def main() -> httpx.Response:
        service = FakeService()
        service.failure = RuntimeError(f"{object()!r} at /home/someone/models/x")
        async with client_of(application(service)) as client:
            return await client.post("/v1/chat/completions", json=CHAT)

    with caplog.at_level(logging.CRITICAL):
        reply = asyncio.run(main())
    assert reply.status_code == 500
    assert "0x" not in reply.text
    assert "/home" not in reply.text

"""Nothing that a client sends gives a 5xx: random bodies at every address."""

import asyncio
import json
from functools import cache
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp

from tests.api.fakes import MODEL, FakeService, application, client_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
USER: dict[str, Any] = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": MODEL.id,
        "messages": [USER],
        "tools": [TOOL],
        "tool_choice": "auto",
        "response_format": {"type": "json_object"},
        "stream_options": {"include_usage": True},
        "stream": True,
        "logit_bias": {"1": 1},
        "stop": ["a"],
        "reasoning": {"effort": "low"},
        "n": 1,
    },
    "/v1/completions": {
        "model": MODEL.id,
        "prompt": ["Hi"],
        "logprobs": 1,
        "echo": True,
        "n": 1,
        "best_of": 1,
    },
    "/v1/responses": {
        "model": MODEL.id,
        "input": [USER],
        "text": {"format": {"type": "text"}},
        "store": False,
    },
    "/v1/messages": {
        "model": MODEL.id,
        "max_tokens": 5,
        "messages": [USER],
        "system": "s",
        "tool_choice": None,
    },
    "/v1/messages/count_tokens": {"model": MODEL.id, "messages": [USER]},
    "/v1/responses/input_tokens": {"model": MODEL.id, "input": "x"},
    "/tokenize": {"model": MODEL.id, "prompt": "x"},
    "/detokenize": {"model": MODEL.id, "tokens": [1]},
    "/apply-template": {"model": MODEL.id, "messages": [USER]},
    "/v1/models/load": {"model": MODEL.id},
    "/unload": {},
    "/v1/models/x/pin": {"pinned": True},
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path] * bool(path) + [found for key, each in inner for found in places(each, (*path, key))]


def changed(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(body) if isinstance(body, dict) else list(body)
    copy[path[0]] = changed(body[path[0]], path[1:], value)
    return copy


@cache
def app() -> ASGIApp:
    """One for all requests, as a server is; none of them changes what the next one gets."""
    return application(FakeService())


def send(path: str, content: bytes) -> httpx.Response:
    async def main() -> httpx.Response:
        async with client_of(app()) as client:
            return await client.post(path, content=content, headers={"content-type": "application/json"})

    return asyncio.run(main())


@pytest.mark.parametrize("path", BODIES)
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_body_with_one_value_changed_is_answered_or_refused(path: str, data: st.DataObject) -> None:
    body = BODIES[path]
    places_of = places(body) or [("unknown",)]
    place = data.draw(st.sampled_from(places_of))
    value = data.draw(VALUES)
    content = json.dumps(changed(body | {"unknown": 1}, place, value)).encode()
    reply = send(path, content)
    assert reply.status_code < 500, (place, value, reply.text)
    if reply.status_code != 200:
        assert reply.json()["error"]["message"]


@pytest.mark.parametrize("path", BODIES)
@given(content=st.binary(max_size=40))
@settings(max_examples=15)
def test_bytes_that_are_no_json_are_refused(path: str, content: bytes) -> None:
    assert send(path, b"\x00" + content).status_code == 400

"""Every number of every route, however deep in the body: wrong ones are refused by name, and none is a 5xx."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from pippin.api.dialects.registry import address_of, find_dialects
from pippin.api.dialects.shared.fields import names_of
from pippin.api.routing import DocumentedRoute
from tests.api.fakes import MODEL, FakeService, application, client_of, routes_of
from tests.security.numbers import HERE, Place, least, places

INFINITE = ("1e999", "-1e999", "NaN", "Infinity", "-Infinity")
ODD = ("-1", "1.5", "9223372036854775808", "1e300")
USER: dict[str, Any] = {"role": "user", "content": "Hi"}
GOOD: dict[str, Any] = {
    "model": MODEL.id,
    "messages": [USER],
    "max_tokens": 5,
    "prompt": "Hi",
    "input": "Hi",
    "tokens": [1],
    "documents": ["x"],
}
"""Good values of fields that would otherwise be refused before the number is looked at."""

IN_PARTS: dict[str, list[Place]] = {
    "/v1/responses": [
        ("fps", {"input": [{"role": "user", "content": [{"type": "input_video", "video_url": "x", "fps": HERE}]}]}),
        ("compact_threshold", {"context_management": [{"type": "compaction", "compact_threshold": HERE}]}),
    ],
    "/v1/messages": [
        ("budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": HERE}}),
        ("max_uses", {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": HERE}]}),
        ("a", {"messages": [USER, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": HERE}}]}, USER]}),
    ],
    "/v1/chat/completions": [
        ("a", {"chat_template_kwargs": {"a": [HERE]}}),
        ("maxLength", {"response_format": {"type": "json_schema", "json_schema": {
            "name": "s", "schema": {"type": "string", "maxLength": HERE}}}}),
        ("maxLength", {"guided_json": {"type": "string", "maxLength": HERE}}),
        ("maxProperties", {"tools": [{"type": "function", "function": {
            "name": "f", "parameters": {"type": "object", "maxProperties": HERE}}}]}),
        ("a", {"messages": [USER, {"role": "assistant", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": HERE}}}]}]}),
        ("a", {"metadata": {"a": HERE}}),
        ("include_usage", {"stream": True, "stream_options": {"include_usage": HERE}}),
    ],
    "/v1/mcp/execute": [("a", {"tool_name": "s__t", "arguments": {"a": HERE}})],
    "/v1/models/load": [("model", {"model": HERE})],
}  # fmt: skip
"""In values that are read after the body: contents, tools, free forms."""


def routes() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """All that take a JSON body; those with forms are tested below."""
    for path, dialect in find_dialects().items():
        yield address_of(path), dialect.contract.body
    for route in routes_of(application(FakeService())):
        if (
            not isinstance(route, DocumentedRoute)
            or route.contents.get("body") is None
            or route.contents.get("form")
        ):
            continue
        if route.path.startswith("/v1") and "POST" in (route.methods or ()):
            yield route.path, route.contents["body"]


ROUTES = dict(routes())


def bodies(path: str) -> Iterator[Place]:
    body = ROUTES[path]
    good = {name: value for name, value in GOOD.items() if name in names_of(body)}
    for field in msgspec.structs.fields(body):
        for name, value in places(field.type, field.encode_name):
            yield name, least(body) | good | {field.encode_name: value}
    for name, value in IN_PARTS.get(path, ()):
        yield name, good | value


def test_all_rooms_of_the_api_are_here() -> None:
    assert {name.split("/")[2] for name in ROUTES} >= {
        "chat", "completions", "responses", "messages", "embeddings", "rerank", "images", "audio",
        "models", "mcp", "tokenize", "detokenize", "apply-template", "conversations",
    }  # fmt: skip
    assert set(IN_PARTS) <= set(ROUTES)
    assert sum(1 for path in ROUTES for _ in bodies(path)) > 250


@pytest.mark.parametrize(
    "numbers", [INFINITE[1:3] + ODD[::3], pytest.param(INFINITE + ODD, marks=pytest.mark.long)], ids=len
)
@pytest.mark.parametrize("path", [path for path in ROUTES if any(bodies(path))])
def test_a_number_anywhere_in_a_body_is_honoured_or_refused_by_name(
    path: str, numbers: tuple[str, ...]
) -> None:
    async def main() -> list[str]:
        wrong = []
        async with client_of(application(FakeService())) as client:
            for name, body in bodies(path):
                otherwise = message(await send(client, path, body, "1"))
                for number in numbers:
                    reply = await send(client, path, body, number)
                    complaint = judged(name, number, reply)
                    if complaint and (reply.status_code == 200 or message(reply) != otherwise):
                        wrong.append(f"{number} in {body}: {complaint}")
        return wrong

    wrong = asyncio.run(main())
    assert not wrong, "\n".join(wrong)


async def send(client: httpx.AsyncClient, path: str, body: Any, number: str) -> httpx.Response:
    content = json.dumps(body).replace(f'"{HERE}"', number).encode()
    headers = {"content-type": "application/json"}
    return await client.post(path.replace("{id:path}", "x"), content=content, headers=headers)


def message(reply: httpx.Response) -> str | None:
    if reply.status_code == 200:
        return None
    error = reply.json()["error"]  # which is the sentence itself in Ollama's API
    return str(error["message"] if isinstance(error, dict) else error)


def judged(name: str, number: str, reply: httpx.Response) -> str | None:
    """What is wrong with it."""
    if reply.status_code >= 500 and reply.status_code != 501:
        return f"{reply.status_code} {reply.text[:200]}"
    if number in INFINITE and reply.status_code != 400:
        return f"{reply.status_code} for {number}"
    text = message(reply) or ""
    if (
        reply.status_code == 400 and name not in text and "[...]" not in text
    ):  # keys of free forms are not repeated
        return text
    return None

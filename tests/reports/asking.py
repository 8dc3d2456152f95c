"""Scripted servers that answer in a format of calls, and one way to ask all four dialects."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.api.scripted_server import scripted_server

ADDRESSES = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "ollama": "/api/chat",
}


def saying(answer: str) -> dict[str, Any]:
    """A rule: whoever asks for exactly this answer gets it."""
    return {"when": {"user": f"^{name_of(answer)}$"}, "say": answer}


def name_of(answer: str) -> str:
    return "say" + answer.encode().hex()


@contextmanager
def server(folder: Path, *answers: str, **script: Any) -> Iterator[str]:
    with scripted_server(folder, *map(saying, answers), **script) as address:
        yield address


def tool_of(dialect: str, name: str, schema: dict[str, Any]) -> dict[str, Any]:
    if dialect == "messages":
        return {"name": name, "input_schema": schema}
    if dialect == "responses":
        return {"type": "function", "name": name, "parameters": schema, "strict": False}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def ask(
    address: str, dialect: str, answer: str, tools: dict[str, dict[str, Any]] | None = None, **fields: Any
) -> dict[str, Any]:
    """The whole answer of a model that says `answer`."""
    turn = {"role": "user", "content": name_of(answer)}
    body: dict[str, Any] = {"model": "scripted", "stream": False, **fields}
    body |= {"input": [turn]} if dialect == "responses" else {"messages": [turn]}
    body |= {"max_tokens": body.get("max_tokens", 2000)} if dialect == "messages" else {}
    body |= {"tools": [tool_of(dialect, name, schema) for name, schema in tools.items()]} if tools else {}
    reply = httpx.post(address + ADDRESSES[dialect], json=body, timeout=30)
    assert reply.status_code == 200, reply.text
    return reply.json()  # type: ignore[no-any-return]


def streamed(address: str, dialect: str, answer: str, **fields: Any) -> list[dict[str, Any]]:
    """The JSON of each frame of a stream."""
    turn = {"role": "user", "content": name_of(answer)}
    body: dict[str, Any] = {"model": "scripted", "stream": True, **fields}
    body |= {"input": [turn]} if dialect == "responses" else {"messages": [turn]}
    body |= {"max_tokens": 2000} if dialect == "messages" else {}
    reply = httpx.post(address + ADDRESSES[dialect], json=body, timeout=30)
    assert reply.status_code == 200, reply.text
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def calls_of(reply: dict[str, Any]) -> list[tuple[str, Any]]:
    """The calls of a chat answer, with their arguments as values."""
    message = reply["choices"][0]["message"]
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    ]


def content_of(reply: dict[str, Any]) -> str | None:
    return reply["choices"][0]["message"]["content"]  # type: ignore[no-any-return]

"""A marker stands in for every secret: keys, prompts and files. No log line above debug and no error ever holds it."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from pippin.api.dialects.registry import address_of, find_dialects
from pippin.core.events import Accepted, Event, Failed, Finished, PartDelta, PartEnded, PartStarted
from tests.api.fakes import MODEL, FakeService, application, client_of, failed

MARKER = "xyzzy-Kräuter-42"
NAMES = frozenset({"model", "previous_response_id", "conversation"})
"""Fields that name what there is on the server: their values are for the log."""

LEAST: dict[str, dict[str, Any]] = {
    "chat_completions": {"messages": [{"role": "user", "content": MARKER}]},
    "completions": {"prompt": MARKER},
    "responses": {"input": MARKER},
    "messages": {"messages": [{"role": "user", "content": MARKER}], "max_tokens": 5},
    "gemini": {"contents": [{"parts": [{"text": MARKER}]}]},
    "ollama_chat": {"messages": [{"role": "user", "content": MARKER}]},
    "ollama_generate": {"prompt": MARKER},
}

SHAPES: tuple[Callable[[Any], Any], ...] = (
    lambda secret: secret,
    lambda secret: [secret],
    lambda secret: {secret: secret},
    lambda secret: [{"type": secret, "text": secret, "role": secret, "content": secret, "name": secret}],
    lambda secret: [{"role": "user", "content": [{"type": "text", "text": secret, secret: 1}]}],
    lambda secret: [{"type": "function", "function": {"name": secret, "parameters": {"type": secret}}}],
    lambda secret: {"type": "json_schema", "json_schema": {"name": secret, "schema": {"pattern": secret}}},
)
"""Right in some fields and wrong in the others, which is where complaints would repeat them."""


def addressed(path: str) -> str:
    """The address of a dialect's requests to the one model, where it names one."""
    return address_of(path).replace("{model:path}", MODEL.id)


def bodies(shapes: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of each dialect, each field in so many shapes, which take turns."""
    for path, dialect in find_dialects().items():
        names = [field.encode_name for field in msgspec.structs.fields(dialect.contract.body)]
        for place, name in enumerate(sorted(set(names) - NAMES | {"no_such_field"})):
            for shape in (*SHAPES, *SHAPES)[place % len(SHAPES) :][:shapes]:
                yield addressed(path), {"model": MODEL.id} | LEAST[dialect.name] | {name: shape(MARKER)}


def encoded(headers: dict[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in headers.items()}


def texts(records: list[logging.LogRecord]) -> str:
    formatter = logging.Formatter()
    own = [record for record in records if record.name.startswith("pippin")]
    return "\n".join(formatter.format(record) for record in own if record.levelno > logging.DEBUG)


@pytest.mark.parametrize("shapes", [2, pytest.param(len(SHAPES), marks=pytest.mark.long)])
def test_no_field_of_any_dialect_brings_what_it_holds_into_the_log(
    caplog: pytest.LogCaptureFixture, shapes: int
) -> None:
    found = {}

    async def main() -> None:
        app = application(FakeService(), api_keys=(MARKER,))
        headers = encoded({"authorization": f"Bearer {MARKER}", "user-agent": MARKER})
        async with client_of(app) as client:
            for path, body in bodies(shapes):
                caplog.clear()
                reply = await client.post(path + f"?q={MARKER}", json=body, headers=headers)
                assert reply.status_code < 500, (reply.status_code, body)
                for form in (MARKER, json.dumps(MARKER)[1:-1], "Kr"):
                    if form in texts(caplog.records):
                        found[json.dumps(body)[:200]] = texts(caplog.records)

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    assert not found, "\n".join(sorted({line.partition("refused=")[2] or line for line in found.values()}))


@pytest.mark.parametrize("headers", [{"authorization": f"Bearer {MARKER}"}, {"x-api-key": MARKER}])
def test_a_wrong_key_is_in_neither_the_log_nor_the_error(
    headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> httpx.Response:
        async with client_of(application(FakeService(), api_keys=("right",))) as client:
            return await client.post("/v1/chat/completions", json={}, headers=encoded(headers))

    with caplog.at_level(logging.INFO):
        reply = asyncio.run(main())
    assert reply.status_code == 401
    assert MARKER not in reply.text
    assert MARKER not in texts(caplog.records)


@pytest.mark.parametrize("where", ["image_url", "input_audio"])
def test_a_file_of_the_server_is_in_neither_the_log_nor_the_error(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = tmp_path / MARKER / "picture.png"
    part: dict[str, Any] = {"type": "image_url", "image_url": {"url": f"file://{secret}"}}
    if where == "input_audio":
        part = {"type": "input_audio", "input_audio": {"data": str(secret), "format": "wav"}}

    async def main() -> httpx.Response:
        async with client_of(application(FakeService(), media_path=str(tmp_path))) as client:
            body = {"model": MODEL.id, "messages": [{"role": "user", "content": [part]}]}
            return await client.post("/v1/chat/completions", json=body)

    with caplog.at_level(logging.INFO):
        reply = asyncio.run(main())
    assert reply.status_code == 400
    assert str(tmp_path) not in reply.text
    assert MARKER not in texts(caplog.records)


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("end", [Finished(0, "stop"), failed("internal")], ids=["whole", "broken off"])
def test_an_answer_is_in_no_line_of_the_log(
    end: Event, stream: bool, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    text: list[Event] = [PartStarted(0, 0, "text"), PartDelta(0, 0, MARKER), PartEnded(0, 0)]
    call: list[Event] = [PartStarted(0, 1, "tool_call", "c", "f"), PartDelta(0, 1, MARKER), PartEnded(0, 1)]

    async def main() -> None:
        async with client_of(application(FakeService([Accepted(1), *text, *call, end]))) as client:
            for path, dialect in find_dialects().items():
                body = {"model": MODEL.id, "stream": stream} | LEAST[dialect.name]
                reply = await client.post(addressed(path), json=body)
                assert MARKER in reply.text or reply.status_code == 500 or isinstance(end, Failed)

    with caplog.at_level(level):
        asyncio.run(main())
    assert MARKER not in texts(caplog.records)


def test_an_exception_that_nobody_expected_brings_no_words_into_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They may be a prompt: a library's complaint quotes what it can't read."""
    service = FakeService()
    service.failure = ValueError(f"can't read {MARKER!r}")
    service.failure.__cause__ = KeyError(MARKER)
    body = {"model": MODEL.id} | LEAST["chat_completions"]

    async def main() -> httpx.Response:
        async with client_of(application(service)) as client:
            return await client.post("/v1/chat/completions", json=body)

    with caplog.at_level(logging.INFO):
        reply = asyncio.run(main())
    assert reply.status_code == 500
    assert MARKER not in reply.text
    logged = texts(caplog.records)
    assert MARKER not in logged
    assert "KeyError" in logged
    assert "ValueError" in logged
    assert "fakes.py" in logged  # where it came from is told
    with caplog.at_level(logging.DEBUG):
        asyncio.run(main())
    assert any(record.exc_info for record in caplog.records if record.levelno == logging.DEBUG)

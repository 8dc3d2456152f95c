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

from pippin.api.dialects.registry import find_dialects
from tests.api.fakes import MODEL, FakeService, application, client_of

MARKER = "xyzzy-Kräuter-42"
NAMES = frozenset({"model", "previous_response_id", "conversation"})
"""Fields that name what there is on the server: their values are for the log."""

LEAST: dict[str, dict[str, Any]] = {
    "chat_completions": {"messages": [{"role": "user", "content": MARKER}]},
    "completions": {"prompt": MARKER},
    "responses": {"input": MARKER},
    "messages": {"messages": [{"role": "user", "content": MARKER}], "max_tokens": 5},
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


def bodies() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, dialect in find_dialects().items():
        names = [field.encode_name for field in msgspec.structs.fields(dialect.body)]
        for name in set(names) - NAMES | {"no_such_field"}:
            for shape in SHAPES:
                yield "/v1" + path, {"model": MODEL.id} | LEAST[dialect.name] | {name: shape(MARKER)}


def encoded(headers: dict[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in headers.items()}


def texts(records: list[logging.LogRecord]) -> str:
    formatter = logging.Formatter()
    own = [record for record in records if record.name.startswith("pippin")]
    return "\n".join(formatter.format(record) for record in own if record.levelno > logging.DEBUG)


def test_no_field_of_any_dialect_brings_what_it_holds_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    found = {}

    async def main() -> None:
        app = application(FakeService(), api_keys=(MARKER,))
        headers = encoded({"authorization": f"Bearer {MARKER}", "user-agent": MARKER})
        async with client_of(app) as client:
            for path, body in bodies():
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

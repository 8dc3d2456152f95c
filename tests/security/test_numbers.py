"""Every number of every dialect: what is not finite is refused by name, and no number of any size is a 5xx."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import httpx
import msgspec
import pytest

from pippin.api.dialects.registry import find_dialects
from tests.api.fakes import MODEL, FakeService, application, client_of

LEAST: dict[str, dict[str, Any]] = {
    "chat_completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "completions": {"prompt": "Hi"},
    "responses": {"input": "Hi"},
    "messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5},
}
"""A good body of each dialect; those that are missing here fail the test."""

INFINITE = ("1e999", "-1e999", "NaN", "Infinity", "-Infinity")
ODD = ("-1", "0", "1e300", "-1e300", "1" + "0" * 30, "-1" + "0" * 30, "0.5", "9223372036854775808")


def takes_a_number(annotation: Any) -> bool:
    if annotation in (int, float):
        return True
    return get_origin(annotation) is not list and any(map(takes_a_number, get_args(annotation)))


def numbers() -> Iterator[tuple[str, str, str]]:
    """Paths, names of dialects and of their fields that may hold a number."""
    for path, dialect in find_dialects().items():
        for field in msgspec.structs.fields(dialect.contract.body):
            if takes_a_number(field.type):
                yield path, dialect.name, field.encode_name


def test_there_are_numbers_in_every_dialect() -> None:
    found = list(numbers())
    assert {name for _, name, _ in found} >= set(LEAST)
    assert len(found) > 60


@pytest.mark.parametrize("dialect", sorted(LEAST))
def test_a_number_is_honoured_or_refused_by_name_and_never_infinite(dialect: str) -> None:
    fields = [(path, field) for path, name, field in numbers() if name == dialect]

    async def main() -> None:
        async with client_of(application(FakeService())) as client:
            for path, field in fields:
                for text in INFINITE + ODD:
                    reply = await ask(client, "/v1" + path, LEAST[dialect], field, text)
                    wrong = f"{field}={text}: {reply.status_code} {reply.text[:200]}"
                    assert reply.status_code in (200, 400), wrong
                    assert reply.status_code == 400 or text in ODD, wrong
                    if reply.status_code == 400:
                        assert field in reply.text or text in INFINITE, wrong

    asyncio.run(main())


async def ask(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], field: str, number: str
) -> httpx.Response:
    plain = json.dumps({"model": MODEL.id} | body | {field: "@"})
    content = plain.replace('"@"', number).encode()
    return await client.post(path, content=content, headers={"content-type": "application/json"})

"""Every number of a form, and of an address: what is not finite or out of range is refused by name; none is a 5xx."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from pippin.api.routing import DocumentedRoute
from pippin.core.tasks import GenerateImages, Transcribe
from tests.api.fakes import MODEL, FakeService, application, client_of, routes_of
from tests.security.numbers import HERE, places

INFINITE = ("NaN", "nan", "-nan", "Infinity", "-Infinity", "inf", "-inf", "1e999", "-1e999")
NONSENSE = ("0x10", "1,5", "1 2", "٣", "--1", "1e", "9" * 400, "[1]", "{}")
ODD = ("-1", "1.5", "1e300", "-1e300", "9223372036854775808", "18446744073709551616", "1_000", "0", "-0")
PLAIN: dict[str, tuple[dict[str, str], str]] = {
    "/v1/audio/transcriptions": ({"model": MODEL.id}, "file"),
    "/v1/audio/translations": ({"model": MODEL.id}, "file"),
    "/v1/images/edits": (
        {"model": MODEL.id, "prompt": "x", "output_format": "jpeg"},
        "image",
    ),
    "/v1/files": ({"purpose": "batch"}, "file"),
}
"""A good form of each route: its fields, and the name of its file."""


def forms() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    for route in routes_of(application(FakeService())):
        if isinstance(route, DocumentedRoute) and route.contents.get("form") and route.path.startswith("/v1"):
            assert "body" in route.contents
            yield route.path, route.contents["body"]


FORMS = dict(forms())


def numbers(path: str) -> set[str]:
    """Names of fields that are a number; those that hold some within come as JSON only."""
    body = FORMS[path]
    found = {
        field.encode_name: list(places(field.type, field.encode_name))
        for field in msgspec.structs.fields(body)
    }
    return {name for name, held in found.items() if (name, HERE) in held}


def test_every_form_is_here_with_its_numbers() -> None:
    assert set(FORMS) == set(PLAIN)
    assert numbers("/v1/audio/transcriptions") >= {"temperature", "max_tokens"}
    assert numbers("/v1/images/edits") >= {
        "n",
        "steps",
        "guidance",
        "seed",
        "strength",
        "width",
        "output_compression",
    }


class Noting(FakeService):
    """Keeps the task that a request became, and answers none."""

    task: Any = None

    async def start(self, task: Any, **named: Any) -> Any:
        self.task = task
        return await super().start(task, **named)


async def send(client: httpx.AsyncClient, path: str, name: str, number: str) -> httpx.Response:
    fields, file = PLAIN[path]
    data = fields | {name: number}
    if name in ("width", "height"):
        data |= {"width" if name == "height" else "height": "64"}
    return await client.post(path, data=data, files={file: ("x.wav", b"x")})


@pytest.mark.parametrize("path", sorted(PLAIN))
def test_a_number_in_a_form_is_honoured_or_refused_by_name(path: str) -> None:
    async def main() -> list[str]:
        wrong = []
        service = Noting()
        async with client_of(application(service)) as client:
            for name in sorted(numbers(path)):
                for number in INFINITE + NONSENSE + ODD:
                    service.task = None
                    reply = await send(client, path, name, number)
                    reached = service.task is not None
                    if reached and number not in ODD:
                        wrong.append(f"{name}={number} reached the model: {service.task}")
                    if reached and not finite(service.task):
                        wrong.append(f"{name}={number} became {service.task}")
                    if not reached and (reply.status_code != 400 or name not in reply.text):
                        wrong.append(f"{name}={number}: {reply.status_code} {reply.text[:200]}")
        return wrong

    wrong = asyncio.run(main())
    assert not wrong, "\n".join(wrong)


def finite(task: Transcribe | GenerateImages) -> bool:
    """It can cross to a worker, and what is there is what was sent."""
    return bool(msgspec.msgpack.decode(msgspec.msgpack.encode(task), type=type(task)) == task)


@pytest.mark.parametrize("path", sorted(PLAIN))
def test_a_form_in_the_style_of_an_address_has_no_files_and_is_refused(path: str) -> None:
    async def main() -> None:
        async with client_of(application(FakeService())) as client:
            reply = await client.post(path, data={"model": MODEL.id})
            assert reply.status_code == 415, reply.text
            assert "Send the body as" in reply.text

    asyncio.run(main())


@pytest.mark.parametrize(
    "number", [*INFINITE, *NONSENSE, "-1", "1e300", "9223372036854775808", "0", "101", ""]
)
def test_numbers_in_addresses_are_refused_by_name(number: str) -> None:
    async def main() -> None:
        async with client_of(application(FakeService())) as client:
            stored = (await client.post("/v1/responses", json={"model": MODEL.id, "input": "Hi"})).json()[
                "id"
            ]
            conversation = (await client.post("/v1/conversations", json={})).json()["id"]
            for path in (f"/v1/responses/{stored}/input_items", f"/v1/conversations/{conversation}/items"):
                reply = await client.get(path, params={"limit": number})
                assert reply.status_code == 400, (path, reply.text)
                assert "limit" in reply.text
            form = {"file": ("x.wav", b"x")}
            asked = {"model": MODEL.id, "temperature": number}
            reply = await client.post("/v1/audio/transcriptions", params=asked, files=form)
            assert reply.status_code == 400 or number in ("0", ""), reply.text

    asyncio.run(main())

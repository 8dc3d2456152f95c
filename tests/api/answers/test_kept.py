"""An answer that goes on without its client: read again from any event on, and stopped by its owner alone."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from pippin.core.errors import ErrorReport
from pippin.core.events import Finished, PartEnded
from tests.api.fakes import MODEL, FakeService, application, client_of

CHAT = {"model": MODEL.id, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
KEEP = {"x-keep-answer": "true", "x-request-id": "mine"}
EVENTS = "/v1/requests/mine/events"

Scene = Callable[[httpx.AsyncClient, FakeService], Awaitable[None]]


def play(scene: Scene, **options: Any) -> None:
    async def main() -> None:
        service = FakeService()
        async with client_of(application(service, **options)) as client:
            await asyncio.wait_for(scene(client, service), 20)

    asyncio.run(main())


async def leave(client: httpx.AsyncClient, service: FakeService, **headers: str) -> None:
    """Ask for an answer that waits before its end, and hang up once it has begun."""
    service.hold = True
    asking = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT, headers=KEEP | headers))
    await asyncio.wait_for(service.began.wait(), 5)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


def end(service: FakeService) -> None:
    for event in service.events:
        if isinstance(event, Finished | PartEnded):
            service.runs[0].mailbox.put(event)


def test_who_comes_back_reads_all_events_or_those_after_one() -> None:
    async def scene(client: httpx.AsyncClient, service: FakeService) -> None:
        first = await client.post("/v1/chat/completions", json=CHAT, headers=KEEP)
        again = await client.get(EVENTS)
        assert again.text == first.text
        events = first.text.split("\n\n")
        later = await client.get(EVENTS, params={"after": 1})
        assert later.text.split("\n\n") == events[2:]

    play(scene)


def test_an_answer_goes_on_when_its_client_hangs_up() -> None:
    async def scene(client: httpx.AsyncClient, service: FakeService) -> None:
        await leave(client, service)
        assert not service.runs[0].closed
        end(service)
        assert (await client.get(EVENTS)).text.endswith("data: [DONE]\n\n")
        assert service.runs[0].closed

    play(scene)


def test_a_kept_answer_is_cancelled_by_its_id() -> None:
    async def scene(client: httpx.AsyncClient, service: FakeService) -> None:
        await leave(client, service)
        assert (await client.delete("/v1/requests/mine")).json()["status"] == "cancelled"
        assert "cancelled" in (await client.get(EVENTS)).text

    play(scene)


def test_another_key_neither_reads_nor_stops_it(tmp_path: Any) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("alice: {key: sk-alice}\nbob: {key: sk-bob}\n")

    async def scene(client: httpx.AsyncClient, service: FakeService) -> None:
        await client.post("/v1/chat/completions", json=CHAT, headers=KEEP | {"x-api-key": "sk-alice"})
        assert (await client.get(EVENTS, headers={"x-api-key": "sk-alice"})).status_code == 200
        for method in ("GET", "DELETE"):
            path = EVENTS if method == "GET" else "/v1/requests/mine"
            reply = await client.request(method, path, headers={"x-api-key": "sk-bob"})
            assert reply.status_code == 404

    play(scene, api_key_file=str(keys))


@pytest.mark.parametrize(
    ("fields", "query", "said"), [({"stream": False}, "", "x-keep-answer"), ({}, "?after=x", "whole number")]
)
def test_what_can_not_be_kept_is_refused_by_name(fields: dict[str, Any], query: str, said: str) -> None:
    async def scene(client: httpx.AsyncClient, service: FakeService) -> None:
        reply = await client.post("/v1/chat/completions", json=CHAT | fields, headers=KEEP)
        if query:
            reply = await client.get(EVENTS + query)
        assert reply.status_code == 400
        assert said in reply.json()["error"]["message"]

    play(scene)


def test_a_refusal_has_its_own_status() -> None:
    async def scene(client: httpx.AsyncClient, service: FakeService) -> None:
        service.refusal = ErrorReport(kind="rate_limited", message="Too many wait.")
        plain, kept = [
            await client.post("/v1/chat/completions", json=CHAT, headers=each) for each in ({}, KEEP)
        ]
        assert (kept.status_code, kept.json()) == (plain.status_code, plain.json())
        assert plain.status_code == 429

    play(scene)


@pytest.mark.parametrize(("value", "status"), [("false", 404), ("True", 200), ("yes", 400)])
def test_the_header_is_true_or_false(value: str, status: int) -> None:
    async def scene(client: httpx.AsyncClient, service: FakeService) -> None:
        asked = await client.post("/v1/chat/completions", json=CHAT, headers=KEEP | {"x-keep-answer": value})
        reply = asked if status == 400 else await client.get(EVENTS)
        assert reply.status_code == status

    play(scene)

"""Limits as clients meet them: who is counted, what headers say, on streams and errors too."""

import asyncio
import json
from typing import Any, get_args

import httpx
import pytest
from starlette.types import ASGIApp

from pippin.api.access import guards
from pippin.api.access.errors import Errors
from pippin.api.access.exchange import Exchange
from pippin.api.access.guards import REPORTED, Limits
from pippin.api.dialects.registry import find_dialects
from pippin.config.options.server import ServerOptions
from pippin.core.errors import STATUS, ErrorKind, ErrorReport, ServerError
from pippin.core.events import Accepted, Embedded
from tests.api.fakes import MODEL, FakeService, Wire, application, client_of
from tests.api.golden_events import SEQUENCES
from tests.api.test_kinds_runs import Played

CHAT: dict[str, Any] = {"model": MODEL.id, "messages": [{"role": "user", "content": "Hi"}]}
LEAST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": MODEL.id, "prompt": "Hi"},
    "/v1/responses": {"model": MODEL.id, "input": "Hi"},
    "/v1/messages": CHAT | {"max_tokens": 5},
}


@pytest.mark.parametrize("kind", get_args(ErrorKind))
def test_whoever_is_told_to_come_again_is_told_when(kind: ErrorKind) -> None:
    """In every dialect, whatever the reason: 429, 503, and Anthropic's 529."""
    assert {status for status in STATUS.values() if status in (429, 503)} == {429, 503}
    dialects = find_dialects()
    for dialect in dialects.values():
        reply = Errors(dialects).reply_in(dialect, ErrorReport(kind=kind, message="x"), "id")
        assert ("retry-after" in reply.headers) is (reply.status_code in (429, 503, 529))
        late = ErrorReport(kind=kind, message="x", retry_after=0.2)
        assert int(Errors(dialects).reply_in(dialect, late, "id").headers["retry-after"]) == 1


async def from_address(app: ASGIApp, address: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> int:
    wire = Wire(app, json.dumps(CHAT).encode())
    wire.headers += headers

    async def called(scope: Any, receive: Any, send: Any) -> None:
        await app(scope | {"client": (address, 5)}, receive, send)

    wire.app = called
    await wire.run()
    return int(wire.sent[0]["status"])


def test_without_keys_each_address_is_counted_for_itself() -> None:
    async def main() -> None:
        app = application(FakeService(), rate_limit=2)
        assert [await from_address(app, "10.0.0.1") for _ in range(3)] == [200, 200, 429]
        assert await from_address(app, "10.0.0.2") == 200
        forged = ((b"x-forwarded-for", b"10.0.0.9"),)
        assert await from_address(app, "10.0.0.1", forged) == 429

    asyncio.run(main())


def test_with_a_key_its_name_is_counted_wherever_it_comes_from() -> None:
    async def main() -> None:
        app = application(FakeService(), rate_limit=2, api_keys=("a",))
        key = ((b"x-api-key", b"a"),)
        assert [await from_address(app, f"10.0.0.{place}", key) for place in range(3)] == [200, 200, 429]

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", LEAST)
def test_answers_streams_and_errors_say_where_a_caller_stands(path: str, stream: bool) -> None:
    async def main() -> list[httpx.Response]:
        app = application(FakeService(), rate_limit=3, token_rate_limit=1000)
        async with client_of(app) as client:
            good = LEAST[path] | {"stream": stream}
            bodies = [good, good | {"temperature": "hot"}, good | {"model": "none"}, good]
            return [await client.post(path, json=body) for body in bodies]

    replies = asyncio.run(main())
    assert [reply.status_code for reply in replies] == [200, 400, 404, 429]
    for reply in replies:
        assert set(REPORTED) - set(reply.headers) <= (
            {name for name in REPORTED if name.endswith("tokens")} if reply.status_code == 429 else set()
        )
    assert [reply.headers["x-ratelimit-remaining-requests"] for reply in replies] == ["2", "1", "0", "0"]
    assert int(replies[-1].headers["retry-after"]) >= 1
    used = [int(reply.headers["x-ratelimit-remaining-tokens"]) for reply in replies[:3]]
    assert used[0] >= used[1]


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_an_answer_that_breaks_off_count_too(stream: bool) -> None:
    async def main() -> list[int]:
        app = application(FakeService(SEQUENCES["text"]), token_rate_limit=20)
        async with client_of(app) as client:
            body = CHAT | {"stream": stream}
            return [(await client.post("/v1/chat/completions", json=body)).status_code for _ in range(3)]

    assert asyncio.run(main()) == [200, 200, 429]


def test_tokens_of_every_kind_count() -> None:
    async def main() -> list[int]:
        app = application(Played([Accepted(0), Embedded(b"\0" * 8, 2, 15)]), token_rate_limit=20)
        async with client_of(app) as client:
            body = {"model": MODEL.id, "input": "Hi"}
            return [(await client.post("/v1/embeddings", json=body)).status_code for _ in range(3)]

    assert asyncio.run(main()) == [200, 200, 429]


def test_reads_of_what_is_stored_count_as_requests_and_twenty_others_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guards, "MINUTE", 1e9)  # nothing is refilled meanwhile

    async def main() -> None:
        app = application(FakeService(), rate_limit=4)
        async with client_of(app) as client:

            async def status(path: str, method: str = "GET") -> int:
                return (await client.request(method, path)).status_code

            assert [await status("/v1/models") for _ in range(19)] == [200] * 19
            assert [await status("/health") for _ in range(50)] == [200] * 50
            stored = ["/v1/responses/a", "/v1/conversations/a/items", "/responses/b/input_items"]
            assert [await status(path) for path in stored] == [404] * 3
            assert await status("/v1/responses/a", "DELETE") == 429
            assert (await client.post("/v1/conversations", json={})).status_code == 429
            assert await status("/v1/models") == 200  # a twentieth is left
            assert await status("/v1/models") == 429

    asyncio.run(main())


@pytest.mark.parametrize(("limit", "answered"), [(1, 1), (2, 1), (10, 5)])
def test_lines_of_batches_leave_half_of_a_limit_to_other_requests(limit: int, answered: int) -> None:
    clock = [0.0]
    limits = Limits(ServerOptions(rate_limit=limit), clock=lambda: clock[0])
    line = Exchange(id="a", path="/", caller="b", background=True)
    asked = 0
    with pytest.raises(ServerError, match="try again"):
        while True:
            limits.admit(line)
            asked += 1
    assert asked == answered
    for _ in range(limit - answered):
        limits.admit(Exchange(id="a", path="/", caller="b"))
    with pytest.raises(ServerError):
        limits.admit(Exchange(id="a", path="/", caller="b"))
    clock[0] += 60
    limits.admit(line)

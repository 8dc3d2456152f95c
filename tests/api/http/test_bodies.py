"""Request bodies: how slowly they may come, and how much of them is held at once."""

import asyncio
import gc
import gzip
import json
import resource
from typing import Any

import pytest
from starlette.types import Message

from pippin.api.answers.answer import Answer
from pippin.api.http import body
from pippin.api.http.forms import FormReader
from pippin.cli.begin import allow_many
from pippin.core.errors import ServerError
from tests.api.fakes import MODEL, FakeService, Wire, application, client_of

CHAT: dict[str, Any] = {"model": MODEL.id, "messages": [{"role": "user", "content": "Hi"}]}


def status(wire: Wire) -> int:
    return int(wire.sent[0]["status"])


def header(wire: Wire, name: bytes) -> bytes:
    headers: dict[bytes, bytes] = dict(wire.sent[0]["headers"])
    return headers.get(name, b"")


def test_a_body_that_only_ever_drips_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("pippin.api.http.body.time.monotonic", lambda: now)

    async def receive() -> Message:
        nonlocal now
        now += 5.0  # never silent for as long as it may be
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def main() -> Wire:
        wire = Wire(application(FakeService(), body_timeout=10.0))
        wire.receive = receive  # type: ignore[method-assign]
        await wire.run()
        return wire

    assert status(asyncio.run(main())) == 408
    assert now <= 20.0


def test_a_body_at_a_modest_pace_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now, words = 0.0, json.dumps(CHAT | {"user": "x" * 90_000}).encode()
    monkeypatch.setattr("pippin.api.http.body.time.monotonic", lambda: now)

    async def receive() -> Message:
        nonlocal now, words
        if not words:
            await asyncio.Event().wait()  # the client is there and says nothing
        now += 1.0
        piece, words = words[:8000], words[8000:]
        return {"type": "http.request", "body": piece, "more_body": bool(words)}

    async def main() -> Wire:
        wire = Wire(application(FakeService(), body_timeout=1.5))
        wire.receive = receive  # type: ignore[method-assign]
        await wire.run()
        return wire

    assert status(asyncio.run(main())) != 408


def test_a_body_that_came_quickly_and_then_drips_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    now, sent = 0.0, 0
    monkeypatch.setattr("pippin.api.http.body.time.monotonic", lambda: now)

    async def receive() -> Message:
        nonlocal now, sent
        sent += 1
        if sent == 1:
            return {"type": "http.request", "body": b" " * (8 << 20), "more_body": True}
        now += 5.0
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def main() -> Wire:
        wire = Wire(application(FakeService(), body_timeout=10.0))
        wire.receive = receive  # type: ignore[method-assign]
        await wire.run()
        return wire

    assert status(asyncio.run(main())) == 408
    assert now <= 20.0, "eight megabytes would have been credit for half an hour"


def test_a_caller_who_holds_all_that_it_may_leaves_room_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(body, "LEAST_MEMORY", 200_000)
    monkeypatch.setattr(body, "LARGEST_BODIES", 0)

    async def main() -> None:
        app = application(FakeService(), api_keys=("key-of-alice", "key-of-bob", "key-of-carol"))
        holding: list[asyncio.Task[None]] = []

        def send(name: str, data: bytes) -> Wire:
            wire = Wire(app, data)
            wire.headers = (*wire.headers, (b"x-api-key", f"key-of-{name}".encode()))
            return wire

        async def hold(name: str) -> Wire:
            """Send 10 kB, and no more for as long as it can be."""
            wire, pieces = send(name, b""), [b" " * 10_000]

            async def receive() -> Message:
                if not pieces:
                    await asyncio.Event().wait()
                return {"type": "http.request", "body": pieces.pop(), "more_body": True}

            wire.receive = receive  # type: ignore[method-assign]
            holding.append(asyncio.create_task(wire.run()))
            await asyncio.sleep(0.01)
            return wire

        alices = [await hold("alice") for _ in range(30)]
        assert [status(wire) for wire in alices if wire.sent] == [503] * 20
        for other in ("bob", "carol"):
            wire = send(other, b" " * 30_000 + json.dumps(CHAT).encode())
            await wire.run()
            assert status(wire) == 200
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, return_exceptions=True)
        again = send("alice", b" " * 90_000 + json.dumps(CHAT).encode())
        await again.run()
        assert status(again) == 200

    asyncio.run(main())


def test_bodies_take_no_more_memory_together_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "LEAST_MEMORY", 200_000)
    monkeypatch.setattr(body, "LARGEST_BODIES", 0)

    async def main() -> None:
        app = application(FakeService())
        first_piece_read, go_on = asyncio.Event(), asyncio.Event()
        pieces = [b" " * 80_000, json.dumps(CHAT).encode()]

        async def slowly() -> Message:
            if len(pieces) == 1:
                first_piece_read.set()
                await go_on.wait()
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

        holder = Wire(app)
        holder.receive = slowly  # type: ignore[method-assign]
        holding = asyncio.create_task(holder.run())
        await first_piece_read.wait()
        beyond = Wire(app, b" " * 30_000 + json.dumps(CHAT).encode())
        await beyond.run()
        assert (status(beyond), header(beyond, b"retry-after")) == (503, b"5")
        small = Wire(app, json.dumps(CHAT).encode())
        await small.run()
        assert status(small) == 200
        go_on.set()
        await holding
        again = Wire(app, b" " * 30_000 + json.dumps(CHAT).encode())
        await again.run()
        assert status(again) == 200

    asyncio.run(main())


def test_what_a_compressed_body_unpacks_to_counts_until_its_request_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(body, "LEAST_MEMORY", 200_000)
    monkeypatch.setattr(body, "LARGEST_BODIES", 0)

    async def main() -> None:
        app = application(FakeService())

        async def send(blanks: int) -> int:
            wire = Wire(app, gzip.compress(b" " * blanks + json.dumps(CHAT).encode()))
            wire.headers = (*wire.headers, (b"content-encoding", b"gzip"))
            await wire.run()
            return status(wire)

        assert [await send(blanks) for blanks in (50_000, 150_000, 50_000, 50_000)] == [200, 503, 200, 200]

    asyncio.run(main())


def test_where_there_is_no_place_a_body_is_not_read() -> None:
    async def main() -> Wire:
        service = FakeService()
        service.hold = True
        app = application(service, max_concurrent=1)
        running = Wire(app, json.dumps(CHAT).encode())
        task = asyncio.create_task(running.run())
        await service.began.wait()
        refused = Wire(app, b"{")
        await refused.run()
        assert not refused.given
        running.gone.set()
        await task
        return refused

    assert status(asyncio.run(main())) == 503


def test_the_server_may_have_as_many_connections_as_the_system_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, before[1]), before[1]))
        allow_many()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft > 200
        assert hard == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        (Answer, {"json": {"model": MODEL.id, "messages": [{"role": "user", "content": "x" * 100_000}]}}),
        (FormReader, {"data": {"model": MODEL.id}, "files": {"file": ("a.wav", b"x" * 100_000)}}),
    ],
)
def test_what_a_refused_request_held_is_let_go_at_once(kind: type, sent: dict[str, Any]) -> None:
    """Not when the collector of cycles comes, which counts objects and not their bytes."""
    service = FakeService()
    service.failure = ServerError("context_length_exceeded", "It is too long.")
    path = "/v1/chat/completions" if kind is Answer else "/v1/audio/transcriptions"

    async def main() -> int:
        async with client_of(application(service)) as client:
            assert (await client.post(path, **sent)).status_code == 400
            await asyncio.sleep(0)
            return sum(isinstance(each, kind) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(main()) == 0
    finally:
        gc.enable()

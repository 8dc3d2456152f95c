"""Answers that nobody reads are bounded in bytes and in time, and whoever reads is not cut off for them."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, cast

import pytest
import uvicorn
import uvloop

from pippin.api.http import protocol as room
from pippin.api.http.protocol import BoundedConnection, InTurn, UnreadAnswers

MB = 1 << 20
SIZE = 16 * MB  # of which the kernel takes two or three at once


async def app(scope: Any, receive: Any, send: Any) -> None:
    """A large answer in one piece, in many at `/stream`, or a short one at `/health`."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    if scope["path"] == "/stream":
        for _ in range(100):
            await send({"type": "http.response.body", "body": b"x" * MB, "more_body": True})
    body = b"ok" if scope["path"] == "/health" else b"x" * SIZE
    await send({"type": "http.response.body", "body": body})


class Clients:
    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._writers: list[asyncio.StreamWriter] = []

    async def ask(self, path: str = "/") -> asyncio.StreamReader:
        """Ask, and read nothing beyond a few kilobytes."""
        ours = socket.socket()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ours.setblocking(False)
        await asyncio.get_running_loop().sock_connect(ours, self._address)
        reader, writer = await asyncio.open_connection(sock=ours, limit=4096)
        self._writers.append(writer)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
        return reader

    async def leave(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def serving(unread: UnreadAnswers) -> AsyncIterator[Clients]:
    config = uvicorn.Config(
        InTurn(app, lambda: False, frozenset({"/health"})),
        http=cast(Any, partial(BoundedConnection, unread)),
        port=0,
        ws="none",
        lifespan="off",
        log_config=None,
    )
    server = uvicorn.Server(config)
    serve = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    clients = Clients(server.servers[0].sockets[0].getsockname())
    try:
        yield clients
    finally:
        await clients.leave()
        while server.server_state.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        server.should_exit = True
        await serve


async def rest(reader: asyncio.StreamReader) -> int:
    """How much of the answer comes, with its head; a cut connection ends it."""
    count = 0
    with contextlib.suppress(ConnectionResetError):
        while data := await reader.read(65536):
            count += len(data)
    return count


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    """In the event loop that the server runs in."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(test(), 60))


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets bounds by name; readers are looked at often."""
    monkeypatch.setattr(room, "LOOK_SECONDS", 0.1)

    def bound(**values: float) -> None:
        for name, value in values.items():
            monkeypatch.setattr(room, name, value)

    return bound


def test_answers_that_nobody_reads_take_no_more_than_their_room(bounds: Callable[..., None]) -> None:
    bounds(UNREAD_BYTES=4 * SIZE)

    async def test() -> None:
        unread = UnreadAnswers()
        async with serving(unread) as clients:
            for _ in range(12):
                await clients.ask()
                await asyncio.sleep(0.05)
                assert unread.waiting <= 4 * SIZE
            assert b"ok" in await (await clients.ask("/health")).read(4096)
            assert len(unread.readers) in (3, 4)

    run(test)


def test_who_reads_slowly_gets_all_of_it_while_others_read_nothing(bounds: Callable[..., None]) -> None:
    bounds(UNREAD_BYTES=3 * SIZE)

    async def test() -> None:
        async with serving(UnreadAnswers()) as clients:
            honest = await clients.ask()
            count = 0
            while count < 6 * MB:
                count += len(await honest.read(65536))
            for _ in range(20):  # each of the silent comes later than the honest one
                await clients.ask()
                count += len(await honest.read(4096))
                await asyncio.sleep(0.02)
            assert count + await rest(honest) > SIZE

    run(test)


@pytest.mark.parametrize("path", ["/", "/stream"])
def test_who_reads_nothing_is_cut_off_after_a_while(bounds: Callable[..., None], path: str) -> None:
    bounds(STILL_SECONDS=0.5)

    async def test() -> None:
        unread = UnreadAnswers()
        async with serving(unread) as clients:
            reader = await clients.ask(path)
            async with asyncio.timeout(10):
                while not unread.readers:  # noqa: ASYNC110 - until its answer waits
                    await asyncio.sleep(0.01)
                while unread.readers:  # noqa: ASYNC110 - until it is cut off
                    await asyncio.sleep(0.01)
            assert await rest(reader) < SIZE

    run(test)


def test_one_answer_may_be_larger_than_the_room(bounds: Callable[..., None]) -> None:
    bounds(UNREAD_BYTES=MB)

    async def test() -> None:
        async with serving(UnreadAnswers()) as clients:
            reader = await clients.ask()
            await asyncio.sleep(0.5)
            assert await rest(reader) > SIZE

    run(test)


def test_one_address_has_no_more_than_its_connections_and_gets_others_back(
    bounds: Callable[..., None],
) -> None:
    bounds(OF_ADDRESS=3)

    async def test() -> None:
        async with serving(UnreadAnswers()) as clients:
            for _ in range(3):
                assert await (await clients.ask()).read(9)  # and no more, so that it stays open
            assert await rest(await clients.ask("/health")) == 0
            await clients.leave()
            async with asyncio.timeout(10):
                while not (await (await clients.ask("/health")).read(4096)):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

    run(test)

"""A crowd that comes at once: begun in order, a few in a turn of the event loop, and `/health` before it."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from pippin.api.http.protocol import (
    ACCEPT_SECONDS,
    CONNECTION,
    IN_A_TURN,
    BoundedConnection,
    InTurn,
    UnreadAnswers,
    accept_queue,
)


class Door:
    """An application that notes the paths that it was asked for, behind an `InTurn`."""

    def __init__(self, connections_wait: Callable[[], bool] = lambda: False) -> None:
        self.begun: list[str] = []
        self._in_turn = InTurn(self._app, connections_wait, frozenset())
        self._asking: list[asyncio.Task[None]] = []

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun.append(scope["path"])

    def ask(self, path: str) -> None:
        scope = {"path": path, "state": {CONNECTION: Connected()}}
        self._asking.append(asyncio.create_task(self._in_turn(scope, None, None)))  # type: ignore[arg-type]


class Connected:
    lost = False

    def answered(self) -> None: ...


def test_what_comes_at_once_is_begun_in_order_a_few_in_a_turn() -> None:
    async def main() -> None:
        door, turns = Door(), []
        for number in range(3 * IN_A_TURN + 1):
            door.ask(str(number))
        while len(door.begun) < 3 * IN_A_TURN + 1:
            before = len(door.begun)
            await asyncio.sleep(0)
            turns.append(len(door.begun) - before)
        assert turns[0] == 0
        assert door.begun == [str(number) for number in range(3 * IN_A_TURN + 1)]
        assert max(turns) == IN_A_TURN

    asyncio.run(main())


def test_one_that_comes_when_others_have_begun_is_begun_too() -> None:
    async def main() -> None:
        door = Door()
        for path in ("first", "second"):
            door.ask(path)
            await asyncio.sleep(0.01)
        assert door.begun == ["first", "second"]

    asyncio.run(main())


def test_those_at_the_door_go_first_but_not_for_ever() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            door = Door(accept_queue([listener]))
            with socket.create_connection(listener.getsockname()):
                door.ask("after the connection was accepted")
                for _ in range(20):
                    await asyncio.sleep(0)
                assert not door.begun
                listener.accept()[0].close()
                for _ in range(3):
                    await asyncio.sleep(0)
                assert door.begun == ["after the connection was accepted"]
            with socket.create_connection(listener.getsockname()):
                door.ask("after a while")
                await asyncio.sleep(5 * ACCEPT_SECONDS)
                assert door.begun[1:] == ["after a while"]

    asyncio.run(main())


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 6)})

    def write(self, data: Any) -> None: ...

    def close(self) -> None: ...

    def is_closing(self) -> bool:
        return False


class Crowd:
    """Connections to one application that notes who it was asked by."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._state = ServerState()
        app = InTurn(self._app, lambda: False, frozenset({"/health"}))
        self._config = uvicorn.Config(app, interface="asgi3", ws="none", lifespan="off", log_config=None)
        self._config.load()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def comes(self, path: str) -> BoundedConnection:
        connection = BoundedConnection(
            UnreadAnswers(), config=self._config, server_state=self._state, app_state={}
        )
        connection.connection_made(Transport())
        connection.data_received(f"GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".encode())
        return connection

    async def ended(self, count: int) -> None:
        while len(self.asked) < count or self._state.tasks:  # noqa: ASYNC110 - turns of the loop are what is looked at
            await asyncio.sleep(0)
        for _ in range(10):  # turns in which one more would begin
            await asyncio.sleep(0)


def test_health_goes_before_a_crowd_that_came_earlier() -> None:
    async def main() -> None:
        crowd = Crowd()
        for number in range(200):
            crowd.comes(f"/{number}")
        crowd.comes("/health")
        await crowd.ended(201)
        assert crowd.asked == ["/health", *(f"/{number}" for number in range(200))]

    asyncio.run(main())


def test_who_hangs_up_before_its_turn_is_never_begun() -> None:
    async def main() -> None:
        crowd = Crowd()
        crowd.comes("/stays")
        crowd.comes("/leaves").connection_lost(ConnectionResetError())
        await crowd.ended(1)
        assert crowd.asked == ["/stays"]

    asyncio.run(main())

"""A WebSocket's messages, from a socket that is a stand-in."""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.websockets import WebSocketDisconnect

from pippin.api.http.body import ARRIVING, HELD
from pippin.api.sockets import Channel


class Held:
    def take(self, size: int) -> bool:
        return True

    def free(self, size: int) -> None:
        pass


class Arriving:
    """A connection whose server begins to stop when a test says so."""

    def __init__(self) -> None:
        self.stop: Callable[[], object] = lambda: None

    def on_stop(self, call: Callable[[], object]) -> None:
        self.stop = call


class EndlessSocket:
    """Always has another message."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {HELD: Held(), "state": {ARRIVING: Arriving()}}
        self.closed: list[int] = []

    async def accept(self, subprotocol: str | None) -> None:
        pass

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        return {"type": "websocket.receive", "text": "{}"}

    async def close(self, code: int, reason: str) -> None:
        self.closed.append(code)


class ClosingSocket(EndlessSocket):
    """Closes while an answer is written, before the reader hears of it."""

    async def receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send_text(self, text: str) -> None:
        raise WebSocketDisconnect(1006)


def test_what_is_said_while_the_connection_closes_ends_it_in_order() -> None:
    socket: Any = ClosingSocket()
    told: list[str] = []

    async def say() -> list[str | bytes]:
        talk = Channel(socket)
        await talk.open()
        talk.on_gone(lambda: told.append("gone"))
        await talk.send(b"{}")
        await talk.send(b"{}")
        assert talk.gone
        async with asyncio.timeout(5):
            heard = [message async for message in talk.messages()]
        await talk.close()
        return heard

    assert asyncio.run(say()) == []
    assert told == ["gone"]

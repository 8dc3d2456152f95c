"""Streams replies: one write for whatever a wake-up of the event loop brought."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

EVENTS: Final = "text/event-stream; charset=utf-8"


class EventStream(Response):
    """Sends pieces as they come. `leave` runs at the end, however it came about.

    `cut` is asked at the end: if true, the reply is left without an end, so that the client sees it broken. Server-sent
    events need no such thing, because they can say that they failed.
    """

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        leave: Callable[[], Awaitable[None]],
        *,
        media: str = EVENTS,
        cut: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(status_code=200)
        self.init_headers({"content-type": media, "cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._pieces = pieces
        self._leave = leave
        self._cut = cut if media != EVENTS else lambda: False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            async for piece in self._pieces:
                if piece:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            if not self._cut():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await asyncio.shield(self._leave())


async def each_after(
    act: Callable[[], Awaitable[None]], pieces: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """Pieces, each after an act that may not come later."""
    async for piece in pieces:
        await act()
        yield piece


async def following(first: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A stream whose first piece was already taken."""
    yield first
    async for piece in others:
        yield piece

"""Streams server-sent events: one write for whatever a wake-up of the event loop brought."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class EventStream(Response):
    """Sends pieces as they come. `leave` runs at the end, however it came about."""

    def __init__(self, pieces: AsyncIterator[bytes], leave: Callable[[], Awaitable[None]]) -> None:
        super().__init__(status_code=200)
        self.init_headers(HEADERS)
        del self.headers["content-length"]
        self._pieces = pieces
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            async for piece in self._pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await asyncio.shield(self._leave())

"""A reply on its way: sent piece by piece, one write for each wake-up of the event loop, while the client is there."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pippin.api.dialects.shared.frames import EVENTS as EVENTS


class EventStream(Response):
    """Sends pieces as they come. `leave` runs at the end, however it came about.

    `cut` is asked at the end: if true, the reply is left without an end, so that the client sees it broken. Server-
    sent events need no such thing, because they can say that they failed.
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
    """The pieces, each of them after `act` is done, which may not come later."""
    async for piece in pieces:
        await act()
        yield piece


async def following(first: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A stream whose first piece was taken already: that piece, then the others."""
    yield first
    async for piece in others:
        yield piece


class Presence:
    """Whether the client is still there: watches a connection whose body was read, and calls back once when it ends."""

    def __init__(self, receive: Receive) -> None:
        self.gone = False
        self._on_gone: Callable[[], object] | None = None
        self._watch = asyncio.create_task(self._wait(receive))

    def on_gone(self, call: Callable[[], object]) -> None:
        """Call `call` once when the client hangs up, in place of what was to be called before."""
        self._on_gone = call
        if self.gone:
            call()

    def stop(self) -> None:
        self._on_gone = None
        self._watch.cancel()

    async def _wait(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if self._on_gone is not None:
            self._on_gone()


class NobodyWaits(Presence):
    """The presence of a client that need not stay: for runs that go on without it."""

    def __init__(self) -> None:
        self.gone = False

    def on_gone(self, call: Callable[[], object]) -> None:
        pass

    def stop(self) -> None:
        pass

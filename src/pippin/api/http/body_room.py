"""Bounds the memory that the bodies of all requests take together, however many connections send one."""

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pippin.core.errors import ServerError

LEAST: Final = 1 << 30  # bytes
BODIES: Final = 4  # of the largest size that is allowed


class BodyRoom:
    """A body counts from its first byte to the end of its request; one that finds no room is told to come again."""

    def __init__(self, app: ASGIApp, largest: int) -> None:
        """`largest`: the bytes of the largest body or upload."""
        self._app = app
        self._room = max(LEAST, BODIES * largest)
        self.taken = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        held = 0

        async def receive_counted() -> Message:
            nonlocal held
            message = await receive()
            size = len(message.get("body", b""))
            if self.taken + size > self._room:
                raise ServerError(
                    "overloaded",
                    "The server holds as many bytes of request bodies as it can; try again in a moment.",
                    retry_after=5.0,
                )
            held += size
            self.taken += size
            return message

        try:
            await self._app(scope, receive_counted, send)
        finally:
            self.taken -= held

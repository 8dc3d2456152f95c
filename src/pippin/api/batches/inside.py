"""Sends requests to the server itself, as a client would, with the rights of a batch's owner."""

import asyncio
from collections.abc import MutableMapping
from typing import Any, Final
from uuid import uuid4

from starlette.types import ASGIApp

from pippin.api.access.exchange import SCOPE_KEY, Exchange
from pippin.api.access.keys import Key

HEADERS: Final = [(b"content-type", b"application/json")]


class Reply:
    """The reply to one request."""

    def __init__(self, request: str) -> None:
        self.request = request  # the request's id
        self.status = 500
        self.body = b""


class Inside:
    """The routes of the server, without the guards in front of them, whose checks were made for the batch."""

    def __init__(self) -> None:
        self.app: ASGIApp | None = None

    async def post(self, path: str, body: bytes, *, key: Key | None, owner: str, salted: bool) -> Reply:
        """Send a request at the lowest priority, without counting it against the owner's limits."""
        assert self.app is not None
        exchange = Exchange(
            id=uuid4().hex,
            path=path,
            caller="a batch" if key is None else key.name,
            key=key,
            cache_salt=owner if salted else "",
            background=True,
        )
        reply = Reply(exchange.id)
        given = False

        async def receive() -> dict[str, Any]:
            nonlocal given
            if given:
                await asyncio.Event().wait()  # until the request is cancelled: this client does not hang up
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                reply.status = message["status"]
            else:
                reply.body += message.get("body", b"")

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [*HEADERS, (b"content-length", str(len(body)).encode())],
            "client": None,
            "server": None,
            SCOPE_KEY: exchange,
        }
        await self.app(scope, receive, send)
        return reply

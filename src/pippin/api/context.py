"""What routes are made from, and the form in which they are made."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pippin.api.dialects.base import AnyDialect
from pippin.api.errors import Errors
from pippin.api.exchange import exchange_of
from pippin.api.handler import Handler
from pippin.api.history import ResponseStore
from pippin.api.keys import Keyring
from pippin.api.observer import Observer
from pippin.config.server_options import ServerOptions
from pippin.config.settings import Settings
from pippin.service import Service

VERSION = "/v1"

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(slots=True)
class Current:
    """The settings as they are now; `PATCH /v1/settings` and SIGHUP put new ones in."""

    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """Given to `routes(api)` of every module in `api/routes`."""

    service: Service
    settings: Current
    options: ServerOptions  # as they were at the start
    handler: Handler
    dialects: Mapping[str, AnyDialect]
    errors: Errors
    keyring: Keyring
    observer: Observer
    store: ResponseStore
    started: float = field(default_factory=time.time)  # seconds since the epoch


def both(path: str, endpoint: Endpoint, *methods: str) -> list[Route]:
    """The address with the version and without."""
    names = list(methods) or ["GET"]

    async def routed(request: Request) -> Response:
        exchange_of(request.scope).route = VERSION + path
        return await endpoint(request)

    return [Route(prefix + path, routed, methods=names) for prefix in (VERSION, "")]


def json_reply(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")

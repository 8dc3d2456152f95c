"""What routes are made from, and how they are declared."""

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import msgspec
from msgspec import Struct, field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pippin.api.access.errors import Errors
from pippin.api.access.exchange import Endpoint, exchange_of, noted
from pippin.api.access.keys import Keyring
from pippin.api.answers.answer import Observer
from pippin.api.answers.handler import Handler
from pippin.api.batches.runner import Batches
from pippin.api.dialects.base import AnyDialect
from pippin.api.dialects.registry import address_of
from pippin.api.http.body import LARGE, MIB, read_body
from pippin.api.live_settings import LiveSettings
from pippin.api.stored_responses.response_store import ResponseStore
from pippin.api.telemetry.ledger import Ledger
from pippin.config.options.server import ServerOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, ModelKind
from pippin.service.service import Service


class Api(Struct, frozen=True, kw_only=True):
    """The parts of the server that routes use; passed to `routes(api)` of every module in `api/routes`."""

    service: Service
    settings: LiveSettings
    handler: Handler
    dialects: Mapping[str, AnyDialect]
    keys: Keyring
    errors: Errors
    observer: Observer
    ledger: Ledger
    store: ResponseStore
    batches: Batches
    started: float = field(default_factory=time.time)  # seconds since the epoch

    async def model(
        self, request: Request, name: str, kind: ModelKind | None = None, *, here: bool = True
    ) -> ModelInfo:
        """The model that this name means for a request of this kind; unless it has to be `here`, it may be one that the
        operator named and that is not downloaded. Raises `ServerError` if there is none that the caller may use."""
        try:
            info = await self.service.names.find(name, kind)
        except ServerError:
            missing = [] if here else await asyncio.to_thread(self.service.catalog.missing)
            if not (named := [each for each in missing if each.id == name]):
                raise
            info = named[0]
        exchange_of(request.scope).check_opens(name, info)
        return info

    async def models(self, request: Request) -> list[ModelInfo]:
        """The models that are here and that the caller may use."""
        found = await asyncio.to_thread(self.service.models)  # reads the disk
        return list(filter(exchange_of(request.scope).opens, found))

    async def small_body(self, request: Request) -> bytes:
        """The body of a request to the server itself, which is read at once."""
        return await read_body(request, LARGE / MIB, self.options.body_timeout)

    @property
    def options(self) -> ServerOptions:
        """The server's options as they are now."""
        return self.settings.settings.server


class Contents(TypedDict, total=False):
    """What a route takes and gives, for the OpenAPI document."""

    body: type[msgspec.Struct]
    answer: type[msgspec.Struct] | None
    form: bool  # the body is a multipart form with files
    optional: bool  # the body may be missing
    media: Sequence[str]  # types of replies that are not JSON; without an `answer` no reply is JSON


class DocumentedRoute(Route):
    """A route that knows its contents, and the pattern by which metrics count its requests."""

    def __init__(
        self, path: str, endpoint: Endpoint, *methods: str, pattern: str = "", **contents: Unpack[Contents]
    ) -> None:
        super().__init__(path, endpoint, methods=methods or ["GET"])
        self.app = noted(pattern or path, self.app)
        self.contents = contents
        self.help = inspect.getdoc(endpoint) or ""


def both(path: str, endpoint: Endpoint, *methods: str, **contents: Unpack[Contents]) -> list[Route]:
    """Routes for an address with the version and without it.

    Addresses under `/api` have no version, as on the servers whose APIs these are.
    """
    pattern = address_of(path)
    addresses = dict.fromkeys((pattern, path))
    return [DocumentedRoute(each, endpoint, *methods, pattern=pattern, **contents) for each in addresses]


def json_reply(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def on_thread(work: Callable[[Request], Any]) -> Endpoint:
    """The endpoint that replies with what this work gives. It runs in a thread: what is stored may be large, and the
    disk slow."""

    @functools.wraps(work)
    async def reply(request: Request) -> Response:
        return await asyncio.to_thread(lambda: json_reply(work(request)))

    return reply


def number_of(request: Request, name: str) -> int:
    """The number in the query after which the caller wants what came; -1 if it is missing. Raises `ServerError`."""
    given = request.query_params.get(name, "-1")
    try:
        return max(-1, int(given[:12]))
    except ValueError:
        raise ServerError("invalid_request", f"`{name}` must be a whole number.", name) from None

"""Puts the server together: guards in front, routes behind."""

import functools
import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from pippin.api import routes
from pippin.api.access.client_secrets import ClientSecrets
from pippin.api.access.errors import Errors
from pippin.api.access.exchange import ExchangeFrame, caller_of, exchange_of
from pippin.api.access.guards import Guard, LastCatcher
from pippin.api.access.keys import Allowance, KeysInForce
from pippin.api.access.limits import REPORTED, Ledger, Limits, OwnLedger
from pippin.api.answers.answer import RunningAnswers
from pippin.api.answers.media import MediaResolver
from pippin.api.batches.batches import Batches
from pippin.api.context import VERSION, Api, Endpoint, both
from pippin.api.dialects.base import AnyDialect
from pippin.api.dialects.registry import find_dialects
from pippin.api.dialects.responses.dialect import ResponsesDialect
from pippin.api.handler import Handler
from pippin.api.http.body import MIB, BodyMemory
from pippin.api.http.passing import PASSED
from pippin.api.live_settings import LiveSettings
from pippin.api.processes.owner import ApiProcesses
from pippin.api.processes.shared import PATHS
from pippin.api.routes.ollama import GENERATIONS, generation
from pippin.api.routes.responses import created
from pippin.api.schema import schema_routes
from pippin.api.storage.response_store import OwnedHistory, Store, open_store
from pippin.api.telemetry.observer import Observer, Unobserved, traced
from pippin.api.telemetry.recent import RecentRequests
from pippin.config.mcp_file import McpSettings
from pippin.config.options.server import ServerOptions
from pippin.config.settings import Settings
from pippin.core.errors import ServerError
from pippin.mcp import ToolServers
from pippin.service import Requests, Service
from pippin.service.tools.offers import ToolOffers

MISDIRECTED: Final = 421
ErrorDrawer = Callable[[Request, Exception], Awaitable[Response]]


def create_app(
    service: Service,
    settings: Settings,
    live: LiveSettings | None = None,
    tool_servers: ToolServers | None = None,
    batches: Batches | None = None,
    processes: ApiProcesses | None = None,
) -> ASGIApp:
    """The whole server as one ASGI application. The caller starts and closes `tool_servers`, `batches` and `processes`
    (the other API processes).

    Raises `ServerError` for options that can't be used.
    """
    live = live or LiveSettings(settings, service)
    options = live.options
    keys = KeysInForce(options)
    live.follow(keys.adopt)  # before the followers that check requests against the keys
    counting = observer_of(settings)
    observer = traced(counting)
    limits = limits_of(options, OwnLedger() if processes is None else processes.ledger)
    dialects = find_dialects()
    errors = Errors(dialects)
    media = MediaResolver(options)
    tools = ToolOffers(tool_servers or ToolServers(McpSettings()), options.mcp_offer)
    handler = Handler(service, options, observer, limits, media, tools)
    batches = batches or Batches(options)
    for follower in (tools, handler, batches):
        live.follow(follower.adopt)
    api = Api(
        service=service,
        settings=live,
        handler=handler,
        dialects=dialects,
        errors=errors,
        observer=counting,
        store=open_store(options),
        media=media,
        tool_servers=tools.servers,
        batches=batches,
        processes=processes,
        client_secrets=(secrets := ClientSecrets()),
        keys=keys,
        limits=limits,
    )
    if processes is not None:
        processes.connect(handler.answers, api.store)
    app: ASGIApp = _routed(find_routes(api), errors, errors.http_error)
    batches.connect(app, handler.answers, keys)
    app = _guarded(app, live, keys, errors, secrets)
    return ExchangeFrame(app, observer.http)


@dataclass(frozen=True, slots=True)
class Answering:
    """The application of an API process that answers requests to models and nothing else."""

    app: ASGIApp
    answers: RunningAnswers
    counted: Observer


def create_answering(requests: Requests, live: LiveSettings, ledger: Ledger, store: Store) -> Answering:
    """Create the application of an API process beside the first."""
    options = live.options
    keys = KeysInForce(options)
    live.follow(keys.adopt)  # before the followers that check requests against the keys
    counting = observer_of(live.settings)
    observer = traced(counting)
    dialects = find_dialects()
    errors = Errors(dialects)
    tools = ToolOffers(ToolServers(McpSettings()), options.mcp_offer)
    handler = Handler(requests, options, observer, limits_of(options, ledger), MediaResolver(options), tools)
    live.follow(handler.adopt)
    app: ASGIApp = _routed(shared_routes(handler, dialects, store), errors, misdirected)
    # Client secrets open only WebSockets, which the first process serves.
    app = _guarded(app, live, keys, errors, ClientSecrets())
    return Answering(ExchangeFrame(app, observer.http), handler.answers, counting)


def shared_routes(handler: Handler, dialects: Mapping[str, AnyDialect], store: Store) -> list[BaseRoute]:
    """The routes of `PATHS`. A request that turns out to be the first process's is handed over with its connection."""
    responses = ResponsesDialect()

    async def hand_over(request: Request, *_: Any) -> Response:
        handler.forgive(exchange_of(request.scope))
        if not request.scope["state"][PASSED].hand_over():
            return await misdirected(request, ServerError("unsupported", "Another process answers this."))
        return Response()  # never sent: the connection is closed here

    async def respond(request: Request) -> Response:
        history = OwnedHistory(store, exchange_of(request.scope).owner)
        return await created(handler, responses, history, request, hand_over)

    special = {responses.path: decided(respond)} | {
        dialect.path: decided(generation(handler, dialect, said, hand_over)) for dialect, said in GENERATIONS
    }
    return [
        route
        for path in PATHS
        for route in both(path, special.get(path) or handler.endpoint(dialects[path]), "POST")
    ]


def decided(endpoint: Endpoint) -> Endpoint:
    """The endpoint; once it is done, its request can no longer be handed over."""

    @functools.wraps(endpoint)
    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        finally:
            request.scope["state"][PASSED].stays()

    return answer


async def misdirected(request: Request, error: Exception) -> Response:
    """Reply 421 to a request that could not be passed to its own process because it came behind an unanswered one
    (RFC 9110, section 15.5.20)."""
    message = "Send this request when those before it on the same connection are answered, or on another connection."
    body = {
        "error": {"message": message, "type": "invalid_request_error", "param": None, "code": "misdirected"}
    }
    return JSONResponse(body, MISDIRECTED, {"connection": "close"})


def limits_of(options: ServerOptions, ledger: Ledger) -> Limits:
    allowance = Allowance(options.rate_limit, options.token_rate_limit)
    return Limits(allowance, options.max_concurrent, ledger=ledger)


def _routed(found: Sequence[BaseRoute], errors: Errors, http_error: ErrorDrawer) -> Starlette:
    """The router with its error handlers. `http_error` answers where no route matches."""
    return Starlette(
        routes=found,
        exception_handlers={
            ServerError: errors.server_error,
            HTTPException: http_error,
            Exception: errors.unexpected,
        },
    )


def _guarded(
    app: ASGIApp, live: LiveSettings, keys: KeysInForce, errors: Errors, secrets: ClientSecrets
) -> ASGIApp:
    """Wrap the application in the bound on bodies, the guard, CORS, and the catcher of unexpected errors."""
    options = live.options
    largest = int(max(options.max_body_mb, options.max_upload_mb) * MIB)
    app = BodyMemory(app, largest, caller_of)
    app = guard = Guard(app, options, keys, errors, secrets)
    live.follow(guard.adopt)
    if options.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=options.allowed_origins,
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "request-id", "retry-after", *REPORTED],
            allow_credentials=False,
        )
    return LastCatcher(app, errors)


def observer_of(settings: Settings) -> Observer:
    if not settings.server.enable_metrics:
        return RecentRequests() if settings.compat == "mlx-vlm" else Unobserved()
    from pippin.api.telemetry.metrics import Metrics  # a fifth of a second to import

    return Metrics()


def find_routes(api: Api) -> list[BaseRoute]:
    """The routes of every module in `api/routes`, and one for each dialect.

    Dialect routes come first because they get most requests, and the router tries routes in order.
    """
    found: list[Route] = []
    for module in pkgutil.iter_modules(routes.__path__):
        found += importlib.import_module(f"{routes.__name__}.{module.name}").routes(api)
    for path, dialect in api.dialects.items():
        found += both(
            path, api.handler.endpoint(dialect), "POST", body=dialect.contract.body, answer=dialect.answer
        )
    found.sort(key=lambda route: route.path.removeprefix(VERSION) not in api.dialects)
    return [*found, *schema_routes(found, api.dialects)]

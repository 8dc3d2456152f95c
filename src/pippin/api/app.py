"""Puts the server together: guards in front, routes behind."""

import importlib
import pkgutil
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from pippin.api import routes
from pippin.api.access.errors import Errors
from pippin.api.access.exchange import ExchangeFrame, caller_of
from pippin.api.access.guards import REPORTED, Guard, LastCatcher, Limits
from pippin.api.access.keys import Allowance, KeysInForce
from pippin.api.answers.handler import Handler, endpoint_of
from pippin.api.answers.media import MediaResolver
from pippin.api.batches.batches import Batches
from pippin.api.dialects.registry import find_dialects, unversioned
from pippin.api.http.body import MIB, BodyMemory
from pippin.api.live_settings import LiveSettings
from pippin.api.routing import Access, Api, both
from pippin.api.schema import schema_routes
from pippin.api.stored_responses.response_store import open_store
from pippin.api.telemetry.ledger import Ledger, Observer
from pippin.api.telemetry.recent import RecentRequests
from pippin.config.mcp_file import McpSettings
from pippin.config.settings import Settings
from pippin.core.errors import ServerError
from pippin.mcp import ToolServers
from pippin.service import Service
from pippin.service.tools.offers import ToolOffers
from pippin.service.tools.web_search import WebSearcher

ROUTES: Final = [
    importlib.import_module(f"{routes.__name__}.{module.name}")
    for module in pkgutil.iter_modules(routes.__path__)
]


def create_app(
    service: Service,
    settings: Settings,
    live: LiveSettings | None = None,
    tool_servers: ToolServers | None = None,
    batches: Batches | None = None,
    ledger: Ledger | None = None,
) -> ASGIApp:
    """The whole server as one ASGI application. The caller starts and closes `tool_servers` and `batches`, and keeps
    the `ledger` on disk.

    Raises `ServerError` for options that can't be used.
    """
    live = live or LiveSettings(settings, service)
    options = live.options
    keys = KeysInForce(options)
    live.follow(keys.adopt)  # before the followers that check requests against the keys
    observer = observer_of(settings)
    dialects = find_dialects()
    errors = Errors(dialects)
    limits = Limits(Allowance(options.rate_limit, options.token_rate_limit), options.max_concurrent)
    access = Access(keys=keys, limits=limits, errors=errors)
    media, servers = MediaResolver(options), tool_servers or ToolServers(McpSettings())
    tools = ToolOffers(servers, options.mcp_offer, WebSearcher(options.web_search, servers, media.fetch))
    handler = Handler(service, options, observer, limits, media, tools, ledger or Ledger())
    batches = batches or Batches(options)
    for follower in (tools, handler, batches):
        live.follow(follower.adopt)
    api = Api(
        service=service,
        settings=live,
        handler=handler,
        dialects=dialects,
        access=access,
        observer=observer,
        store=open_store(options),
        batches=batches,
    )
    app: ASGIApp = Starlette(
        routes=find_routes(api),
        exception_handlers={
            ServerError: errors.server_error,
            HTTPException: errors.http_error,
            Exception: errors.unexpected,
        },
    )
    batches.connect(app, handler.answers, keys, api.store)
    return ExchangeFrame(_guarded(app, live, access), observer.http)


def _guarded(app: ASGIApp, live: LiveSettings, access: Access) -> ASGIApp:
    """Wrap the application in the bound on bodies, the guard, CORS, and the catcher of unexpected errors."""
    options = live.options
    largest = int(max(options.max_body_mb, options.max_upload_mb) * MIB)
    app = BodyMemory(app, largest, caller_of)
    app = guard = Guard(app, options, access.keys, access.limits, access.errors)
    live.follow(guard.adopt)
    if options.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=options.allowed_origins,
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "request-id", "retry-after", *REPORTED],
            allow_credentials=False,
            allow_private_network=True,
        )
    return LastCatcher(app, access.errors)


def observer_of(settings: Settings) -> Observer:
    if not settings.server.enable_metrics:
        return RecentRequests() if settings.compat == "mlx-vlm" else Observer()
    from pippin.api.telemetry.metrics import Metrics  # a fifth of a second to import

    return Metrics()


def find_routes(api: Api) -> list[BaseRoute]:
    """The routes of every module in `api/routes`, and one for each dialect.

    Dialect routes come first because they get most requests, and the router tries routes in order.
    """
    found: list[Route] = [route for module in ROUTES for route in module.routes(api)]
    for path, dialect in api.dialects.items():
        found += both(
            path, endpoint_of(api.handler, dialect), "POST", body=dialect.contract.body, answer=dialect.answer
        )
    found.sort(key=lambda route: unversioned(route.path) not in api.dialects)
    return [*found, *schema_routes(found, api.dialects)]

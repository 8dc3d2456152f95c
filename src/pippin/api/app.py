"""Puts the server together: guards in front, routes behind."""

import importlib
import pkgutil
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from pippin.api import kinds, routes
from pippin.api.access.errors import Errors
from pippin.api.access.exchange import ExchangeFrame, caller_of
from pippin.api.access.guards import REPORTED, Guard, LastCatcher, Limits
from pippin.api.access.keys import Keyring
from pippin.api.answers.answer import Observer
from pippin.api.answers.handler import Handler, endpoint_of
from pippin.api.answers.media import MediaResolver
from pippin.api.batches.runner import Batches
from pippin.api.dialects.registry import find_dialects, unversioned
from pippin.api.http.body import MIB, BodyMemory
from pippin.api.live_settings import LiveSettings
from pippin.api.routing import Api, both
from pippin.api.schema import schema_routes
from pippin.api.stored_responses.response_store import ResponseStore
from pippin.api.telemetry.ledger import Ledger
from pippin.api.telemetry.recent import RecentRequests
from pippin.config.mcp_file import McpSettings
from pippin.config.settings import Settings
from pippin.core.errors import ServerError
from pippin.mcp.tools import ToolServers
from pippin.service.service import Service
from pippin.service.tools.loop import ToolOffers
from pippin.service.tools.web_search import WebSearcher

ROUTES: Final = [
    importlib.import_module(f"{folder.__name__}.{module.name}")
    for folder in (kinds, routes)
    for module in pkgutil.iter_modules(folder.__path__)
]


def open_api(service: Service, settings: Settings, mcp: McpSettings | None = None) -> Api:
    """The parts of the server. The caller starts and closes the tool servers and the batches, and keeps the ledger on
    disk.

    Raises `ServerError` for options that can't be used.
    """
    live, options = LiveSettings(settings, service), settings.server
    keys, limits = Keyring(options), Limits(options)
    observer = RecentRequests() if settings.compat == "mlx-vlm" else Observer()
    if options.enable_metrics:
        from pippin.api.telemetry.metrics import Metrics  # a fifth of a second to import

        observer = Metrics()
    dialects = find_dialects()
    media, servers = MediaResolver(options), ToolServers(mcp or McpSettings())
    tools = ToolOffers(servers, options, WebSearcher(options.web_search, servers, media.fetch))
    handler = Handler(service, options, observer, limits, media, tools)
    store = ResponseStore(options)
    batches = Batches(options, handler.answers, keys, store)
    # The keys come before the followers that check requests against them.
    live.followers += [each.adopt for each in (keys, limits, tools, handler.answers)]
    return Api(
        service=service,
        settings=live,
        handler=handler,
        dialects=dialects,
        keys=keys,
        errors=Errors(dialects),
        observer=observer,
        ledger=Ledger(handler.answers.usage),
        store=store,
        batches=batches,
    )


def create_app(api: Api) -> ASGIApp:
    """The whole server as one ASGI application: the routes, in the bound on bodies, the guard, CORS, and the catcher of
    unexpected errors."""
    options, errors = api.options, api.errors
    app: ASGIApp = Starlette(
        routes=find_routes(api),
        exception_handlers={
            ServerError: errors.server_error,
            HTTPException: errors.http_error,
            Exception: errors.unexpected,
        },
    )
    api.batches.app = app
    largest = int(max(options.max_body_mb, options.max_upload_mb) * MIB)
    app = BodyMemory(app, largest, caller_of)
    app = guard = Guard(app, options, api.keys, api.handler.limits, errors)
    api.settings.followers.append(guard.adopt)
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
    return ExchangeFrame(LastCatcher(app, errors), api.observer.http)


def find_routes(api: Api) -> list[BaseRoute]:
    """The routes of every module in `api/kinds` and `api/routes`, and one for each dialect.

    Dialect routes come first because they get most requests, and the router tries routes in order.
    """
    found: list[Route] = [route for module in ROUTES for route in module.routes(api)]
    for path, dialect in api.dialects.items():
        found += both(
            path, endpoint_of(api.handler, dialect), "POST", body=dialect.contract.body, answer=dialect.answer
        )
    found.sort(key=lambda route: unversioned(route.path) not in api.dialects)
    return [*found, *schema_routes(found, api.dialects)]

"""What is known of one HTTP exchange beside its bytes: its id, its caller, how it ended."""

import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pippin import __version__
from pippin.api.access.keys import Key
from pippin.config.options.server import ModelEntry
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, ModelState

log = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
CLIENT_GONE = 499
SLOW_SECONDS = 60.0
SCOPE_KEY = "pippin.exchange"
PROBES = frozenset({"/health", "/v1/health", "/healthz", "/readyz", "/metrics"})
"""Addresses that programs poll."""


@dataclass(slots=True)
class Exchange:
    """What is known of one HTTP exchange. `ExchangeFrame` creates it; guards and handlers fill it in."""

    id: str
    path: str
    own_id: bool = True  # made here, not by the client
    started: float = field(default_factory=time.perf_counter)
    caller: str = ""  # name of the key, or address: for the log
    key: Key | None = None  # the valid key that was shown
    manages: bool = False  # may manage the server: an administrator, or anyone where management is open
    may_use_tools: bool = False  # may be given the operator's MCP tools, through any API
    cache_salt: str = ""  # keeps the caller's prefix cache apart from those of others; empty if it is shared
    polls: bool = False
    """Whether this is a probe, or a page of this server reads: logged at level DEBUG where it is answered."""
    background: bool = False  # a line of a batch: yields to all others
    anonymous: bool = False  # keys are required and none was shown: reveal as little as possible
    status: int | None = None
    gone: bool = False  # the client hung up before the answer was complete
    headers: dict[str, str] = field(default_factory=dict)  # to be sent with the answer
    route: str = "unrouted"  # the pattern of the address, for metrics
    refusal: str = ""  # the message of an error reply, for the access log
    facts: dict[str, str | int] = field(default_factory=dict)
    """Facts of the answer, for the access log: model, tokens, and milliseconds of queue, prompt and answer."""

    @property
    def owner(self) -> str:
        """The owner of stored responses, running requests and prefix caches; callers without a key share one."""
        return "" if self.key is None else self.key.owner

    @property
    def account(self) -> str:
        """The account that limits are counted for: the owner, or the address of a caller without a key."""
        return self.owner or self.caller

    def may_see(self, owner: str) -> bool:
        """Whether the caller may know of a running request of `owner`. Callers without a key can't be told apart."""
        return self.manages or (self.key is not None and self.owner == owner)

    def opens(self, model: ModelInfo | ModelState | ModelEntry) -> bool:
        """Whether the caller may use a model, which may be one that the operator named, and so learn of it."""
        name = model.called if isinstance(model, ModelEntry) else model.id
        return self.key is None or self.key.allows_model((name,), model.kind)

    def check_opens(self, name: str, info: ModelInfo | None) -> None:
        """Raise `ServerError` if the caller's key does not open the model; `info` is None for one that is not here."""
        names, kind = ((name,), None) if info is None else ((name, info.id), info.kind)
        if self.key is not None and not self.key.allows_model(names, kind):
            raise ServerError("permission", f"This API key does not open the model {name!r}.", "model")

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.started


GOOGLE_KEY: Final = "x-goog-api-key"
_GOOGLE: Final = re.compile(
    r"/v1(?:beta)?/(?:models|(tunedModels))(?:/(?P<name>.+?)(?P<method>:[a-zA-Z]+)?)?"
)
"""Addresses of Gemini's API, at both of its versions; at `/v1` those of models are OpenAI's too."""


def _address_google(scope: Scope) -> None:
    """Give a request of Google's clients the one address that routes, guards and keys know it by, under `/v1beta`, and
    the key in its query the place of the header.

    At `/v1` such a request is known by its method (`models/NAME:countTokens`) or its key.
    """
    found = _GOOGLE.fullmatch(scope["path"])
    if found is None:
        return
    headers = Headers(scope=scope)
    keys = parse_qs(scope["query_string"].decode("latin-1")).get("key", [])
    called = found["method"] is not None and scope.get("method") == "POST"
    if not (called or found[1] or keys or GOOGLE_KEY in headers or scope["path"].startswith("/v1beta/")):
        return
    rest = f"models/{found['name']}{found['method'] or ''}" if found["name"] else found[1] or "models"
    scope["path"] = f"/v1beta/{rest}"
    if keys and GOOGLE_KEY not in headers:
        scope["headers"] = [*scope["headers"], (GOOGLE_KEY.encode(), keys[0].encode())]


def exchange_of(scope: Scope) -> Exchange:
    exchange = scope[SCOPE_KEY]
    assert isinstance(exchange, Exchange)
    return exchange


def caller_of(scope: Scope) -> str:
    """The name of the key that was shown, or the address that the request came from."""
    return exchange_of(scope).caller


def noted(route: str, app: ASGIApp) -> ASGIApp:
    """The application of a route; it records the route in the exchange."""

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        exchange_of(scope).route = route
        await app(scope, receive, send)

    return noting


def open_exchange(scope: Scope) -> Exchange:
    """Put a new exchange into the scope; the client's own request id is used if it is well-formed.

    Superfluous slashes of the path are removed here, before anyone reads it: a redirect would make clients drop the
    body, and would repeat whatever host they claim.
    """
    scope["path"] = "/" + "/".join(filter(None, scope["path"].split("/")))
    _address_google(scope)
    headers = Headers(scope=scope)
    given = headers.get("x-request-id", "")
    own = _ID.fullmatch(given) is None
    path = scope["path"]
    exchange = Exchange(id=uuid4().hex if own else given, path=path, own_id=own)
    by_page = path == "/" or path.startswith("/page/") or headers.get("sec-fetch-site") == "same-origin"
    reads = scope.get("method") in ("GET", "HEAD") or path == "/api/show"
    exchange.polls = path in PROBES or (by_page and reads)
    scope[SCOPE_KEY] = exchange
    return exchange


class ExchangeFrame:
    """The outermost layer: gives each exchange its id and headers, and one line in the log."""

    def __init__(self, app: ASGIApp, finished: Callable[[str, str, int, float], None]) -> None:
        """`finished` is called for each request with its method, route, status and seconds."""
        self._app = app
        self._finished = finished

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = open_exchange(scope)
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return

        async def send_framed(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["server"] = f"pippin/{__version__}"
                headers["x-request-id"] = exchange.id
                # Anthropic's name for it, which its client exposes as `_request_id`.
                headers["request-id"] = exchange.id
                headers["x-process-time"] = f"{exchange.elapsed:.6f}"
                headers.setdefault("x-content-type-options", "nosniff")
                for name, value in exchange.headers.items():
                    headers[name] = value
            await send(message)

        try:
            await self._app(scope, receive, send_framed)
        finally:
            status = CLIENT_GONE if exchange.gone else exchange.status or 500
            write_line(scope["method"], exchange, status)
            self._finished(scope["method"], exchange.route, status, exchange.elapsed)


def write_line(method: str, exchange: Exchange, status: int) -> None:
    """Log the line of an exchange that has ended."""
    slow = exchange.elapsed > SLOW_SECONDS
    # 503 from `/readyz`, for not ready yet, is an answer too.
    answered = status < 400 or (exchange.path, status) == ("/readyz", 503)
    level = logging.DEBUG if exchange.polls and answered else logging.INFO
    if slow:
        level = logging.WARNING
    facts = {"client": exchange.caller, **exchange.facts} if exchange.caller else exchange.facts
    note = "".join(f" {name}={_printable(str(fact))}" for name, fact in facts.items())
    if exchange.refusal:
        note += f' refused="{_printable(exchange.refusal)}"'
    log.log(
        level,
        "%s%s %s %d %.0f ms id=%s%s",
        "Slow: " if slow else "",
        method,
        _printable(exchange.path),
        status,
        exchange.elapsed * 1000,
        exchange.id,
        note,
        extra={
            "request_id": exchange.id,
            "status": status,
            "ms": round(exchange.elapsed * 1000),
            "facts": facts,
        },
    )


def _printable(words: str) -> str:
    """A client's text for one line of the log: without control characters, and cut to length."""
    return "".join(letter if letter.isprintable() else "?" for letter in words[:200])

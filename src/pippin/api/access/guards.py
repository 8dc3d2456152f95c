"""The guard in front of all routes decides who may come in, by host, origin, key and address; limits decide how much
they may ask: requests and tokens per minute for each caller, and concurrent requests for all callers together.

Whatever is not open is closed. An unexpected error is answered with a refusal that reveals nothing about it.
"""

import asyncio
import contextlib
import ipaddress
import logging
import math
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from starlette.datastructures import Headers
from starlette.status import WS_1001_GOING_AWAY
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from pippin.api.access.errors import INTERNAL, Errors
from pippin.api.access.exchange import GOOGLE_KEY, Exchange, exchange_of
from pippin.api.access.keys import Allowance, Key, Keyring
from pippin.api.dialects.registry import VERSION, unversioned
from pippin.api.http.body import check_json
from pippin.config.options.server import ServerOptions
from pippin.core.errors import SHUTTING_DOWN, ServerError, trace_of

log = logging.getLogger(__name__)


OPEN_PATHS: Final = frozenset({"/", "/health", "/v1/health", "/healthz", "/readyz"})
PAGE: Final = "/page/"
"""Addresses below it are files of the page, the same for everybody; the page asks for the key itself."""
METRICS_PATHS: Final = frozenset({"/metrics", "/v1/metrics"})
READS: Final = frozenset({"GET", "HEAD", "DELETE"})
"""Methods of requests without a body, which are counted when they come; others are when their body is read."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES: Final = frozenset({"localhost", "host.docker.internal"})
EXECUTE_TOOL: Final = "/mcp/execute"
MANAGED: Final = (
    *("/unload", "/load", "/models", "/cache", "/settings", EXECUTE_TOOL),
    *("/api/pull", "/api/delete", "/api/copy"),
)
"""Paths below which every request that changes something is management."""
STORED: Final = ("/responses", "/conversations", "/files", "/batches")
"""Paths below which what is stored is read: each read counts as a request."""
READ: Final = 0.05
"""What any other read counts, of a request: pages and monitors look every second."""
KEY_PROTOCOL: Final = "openai-insecure-api-key."
"""Prefix of a key among the subprotocols of a WebSocket, where OpenAI's clients put it in browsers."""
NO_KEY: Final = (
    "Managing the server needs an API key here; the operator sets one with --api-key, "
    "or opens management with --allow-unauthenticated."
)
NO_ADMIN: Final = (
    "This API key is a user's, and managing the server takes an administrator's; the operator gives a key "
    "`role: admin` in the file of --api-key-file."
)


def warn_of(options: ServerOptions, keyring: Keyring) -> None:
    """Tell the operator where nobody may manage the server, and where anyone may use it."""
    if keyring and not any(key.is_admin for key in keyring.keys):
        log.warning(
            "No API key may manage this server: give one of them `role: admin` in the file of --api-key-file, "
            "or set a single --api-key beside it."
        )
    if not is_loopback(options.host) and not keyring:
        opened = ", ".join(options.open_management)
        closed = f"closed but for {opened}" if opened else "closed"
        log.warning(
            "ANYONE WHO CAN REACH %s CAN USE THIS SERVER: no API key is set. Set one with --api-key. Management is %s.",
            options.host,
            "open too" if options.allow_unauthenticated else closed,
        )


def own_names() -> frozenset[str]:
    """The names of this machine, also as multicast DNS has it."""
    name = socket.gethostname().lower()
    short = name.partition(".")[0]
    return frozenset({name, short, f"{short}.local"})


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address, if the host is one and no name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    address = address_of(host)
    return host.lower() in LOOPBACK_NAMES or (address is not None and address.is_loopback)


class Guard:
    """Stands in front of the router, and judges by the same path that the router will see."""

    def __init__(
        self, app: ASGIApp, options: ServerOptions, keys: Keyring, limits: "Limits", errors: Errors
    ) -> None:
        self._app = app
        self._keys = keys
        self._limits = limits
        self._errors = errors
        self.adopt(options)

    def adopt(self, options: ServerOptions) -> None:
        """Apply changed options and the current keys to new requests."""
        warn_of(options, self._keys)
        self._options = options
        loopback, named = is_loopback(options.host), frozenset(host.lower() for host in options.allowed_hosts)
        hosts = named or (None if self._keys else own_names())
        self._hosts = named | {options.host.lower()} if loopback else hosts  # None: any
        # Whether each address of the machine is a host of its own: those that are numbers, not names.
        self._any_address = not loopback and not named
        self._management_open = not self._keys and (loopback or options.allow_unauthenticated)
        self._salted = self._keys.salts
        # These need no key, nor does anything below them.
        self._open_paths = tuple(unversioned(path).rstrip("/") for path in options.open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._judge(scope, Headers(scope=scope), exchange_of(scope))
        except ServerError as error:
            await self._errors.reply(error.report, scope)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _judge(self, scope: Scope, headers: Headers, exchange: Exchange) -> None:
        self._check_host(headers)
        client = scope.get("client")
        exchange.caller = client[0] if client else "local"
        path, method = scope["path"], scope.get("method", "GET")
        if not self._is_harmless(path):
            self._check_origin(headers)
        exchange.anonymous = bool(self._keys.keys)
        if exchange.anonymous:
            is_open = self._is_harmless(path)
            if any(is_within(path, each) for each in self._open_paths):
                is_open = not is_management(path, method)
            self._check_key(headers, exchange, is_open=is_open)
        # What the caller may do beside using models is decided once, here, for every route.
        key, opened = exchange.key, EXECUTE_TOOL in self._options.open_management
        exchange.manages = self._management_open or (key is not None and key.is_admin)
        exchange.may_use_tools = exchange.manages or (key is not None and key.mcp_tools) or opened
        exchange.cache_salt = exchange.owner if self._salted else ""
        if is_management(path, method):
            self._check_management(headers, exchange, path)
        if scope["type"] == "http" and method in READS and not self._is_harmless(path):
            self._limits.count(exchange, 1 if any(is_within(path, each) for each in STORED) else READ)

    def _is_harmless(self, path: str) -> bool:
        """Whether any web page may request an address. This excludes addresses that the operator opened to clients."""
        return (
            path in OPEN_PATHS
            or path.startswith(PAGE)
            or (path in METRICS_PATHS and not self._options.metrics_auth)
        )

    def _check_host(self, headers: Headers) -> None:
        """Refuse hosts that are not the server's own. Raises `ServerError`.

        A page can make its own name resolve to 127.0.0.1 or to an address of the local network (DNS rebinding), but
        can't make the browser hide that name.
        """
        if self._hosts is None or "host" not in headers:  # HTTP/1.0, which no browser speaks
            return
        host = host_name(headers["host"])
        is_own = is_loopback(host) or (self._any_address and address_of(host) is not None)
        if host not in self._hosts and not is_own:
            raise ServerError(
                "permission", "This server does not answer to that Host; allow it with --allowed-host."
            )

    def _check_origin(self, headers: Headers) -> None:
        """Refuse requests from web pages of foreign origins, even if they can't read the answer. Raises `ServerError`.

        A page under the server's own name is not foreign if that name is checked; otherwise any name may lead here.
        """
        origin = headers.get("origin")
        if origin is None:
            foreign = headers.get("sec-fetch-site") == "cross-site"
        else:
            foreign = not self._is_own(origin, headers) and origin not in self._options.allowed_origins
        if foreign and "*" not in self._options.allowed_origins:
            raise ServerError(
                "permission",
                "Web pages of other origins may not use this server; the operator allows one with --allowed-origin.",
            )

    def _is_own(self, origin: str, headers: Headers) -> bool:
        """Whether an origin is the server's own. If any name may lead here, the name proves nothing, but a valid key
        does: browsers keep keys apart by origin, and send none by themselves."""
        if origin.partition("://")[2] != headers.get("host"):
            return False
        if self._hosts is not None:
            return True
        return any(self._keys.find(shown) for shown in shown_keys(headers))

    def _check_key(self, headers: Headers, exchange: Exchange, *, is_open: bool) -> None:
        for shown in shown_keys(headers):
            key = self._keys.find(shown)
            if key is not None:
                exchange.caller, exchange.key, exchange.anonymous = key.name, key, False
                if not is_open:
                    check_endpoint(key, exchange.path)
                return
        if not is_open:
            raise ServerError(
                "authentication",
                "Show a valid API key, as `Authorization: Bearer KEY` or as `x-api-key: KEY`.",
            )

    def _check_management(self, headers: Headers, exchange: Exchange, path: str) -> None:
        may = exchange.may_use_tools if is_within(path, EXECUTE_TOOL) else exchange.manages
        if not may and unversioned(path) not in self._options.open_management:
            raise ServerError("permission", NO_ADMIN if exchange.key else NO_KEY)
        origin = headers.get("origin")
        own = self._options.page and origin is not None and self._is_own(origin, headers)
        if origin is not None and not own and origin not in self._options.allowed_origins:
            raise ServerError("permission", "Web pages of this origin may not manage the server.")
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            check_json(headers, path)


def check_endpoint(key: Key, path: str) -> None:
    """Refuse an address that a key does not open. Raises `ServerError`."""
    if key.endpoints is not None and not any(is_within(path, each) for each in key.endpoints):
        raise ServerError(
            "permission",
            f"This API key does not open {unversioned(path)!r}; its operator says what it opens.",
        )


def is_management(path: str, method: str) -> bool:
    return method not in SAFE_METHODS and any(is_within(path, managed) for managed in MANAGED)


def is_within(path: str, prefix: str) -> bool:
    """Whether an address is `prefix` or below it, with or without the version."""
    return f"{path}/".startswith((f"{prefix}/", f"{VERSION}{prefix}/"))


def host_name(host: str) -> str:
    """A Host header without port and brackets, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") <= 1 else host


def shown_keys(headers: Headers) -> Iterable[bytes]:
    """The keys that a request shows, as bytes, because a key need not be text."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials:
        yield credentials.strip().encode("latin-1")
    for offered in headers.get("sec-websocket-protocol", "").split(","):
        if (named := offered.strip()).startswith(KEY_PROTOCOL):
            yield named.removeprefix(KEY_PROTOCOL).encode("latin-1")
    for name in ("x-api-key", GOOGLE_KEY):
        if key := headers.get(name):
            yield key.strip().encode("latin-1")


class LastCatcher:
    """Catches every unexpected error: logs it, and sends a reply that reveals nothing about it.

    A request is cancelled only when the server stops; if nothing of its reply was sent, the client is told so.
    """

    def __init__(self, app: ASGIApp, errors: Errors) -> None:
        self._app = app
        self._errors = errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
            return
        reply = "none"

        async def send_watched(message: Message) -> None:
            nonlocal reply
            whole = message["type"] == "http.response.body" and not message.get("more_body")
            reply = "whole" if whole else "begun"
            await send(message)

        try:
            await self._app(scope, receive, send_watched)
        except asyncio.CancelledError:
            if reply != "none":
                raise
            await self._errors.reply(SHUTTING_DOWN, scope)(scope, receive, send)
        except Exception as error:
            log.error("Request %s failed.\n%s", exchange_of(scope).id, trace_of(error))
            log.debug("Request %s failed.", exchange_of(scope).id, exc_info=True)
            if reply == "begun":
                raise  # the server closes the connection: nothing else can be sent any more
            if reply == "none":
                await self._errors.reply(INTERNAL, scope)(scope, receive, send)

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        accepted = False

        async def send_watched(message: Message) -> None:
            nonlocal accepted
            accepted = accepted or message["type"] == "websocket.accept"
            await send(message)

        try:
            await self._app(scope, receive, send_watched)
        except asyncio.CancelledError:
            socket = WebSocket(scope, receive, send)
            with contextlib.suppress(RuntimeError, OSError):  # it is closed already
                if accepted:
                    await socket.close(WS_1001_GOING_AWAY, SHUTTING_DOWN.message)
                else:
                    await socket.send_denial_response(self._errors.reply(SHUTTING_DOWN, scope))


REPORTED = tuple(
    f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")
)
"""Headers that tell a caller how much of its limits is left."""


What = Literal["requests", "tokens"]

MINUTE: Final = 60.0
REMEMBERED: Final = 20_000
"""Buckets of callers that are remembered, one or two of each; the least recently seen is forgotten first."""


@dataclass(slots=True)
class Bucket:
    """A token bucket, which fills steadily to `size` in a minute.

    `level` may go below zero: how many tokens an answer takes is known only at its end.
    """

    size: int
    level: float
    filled: float

    def fill(self, size: int, now: float) -> None:
        """Fill up to now, then change the limit. The share that is left stays the same, so that a change of settings
        refills no bucket."""
        now = max(now, self.filled)  # the clock that filled it before may be a little ahead
        level = min(self.size, self.level + (now - self.filled) * self.size / MINUTE)
        self.level, self.size, self.filled = level * size / self.size, size, now

    def until(self, level: float) -> float:
        """Seconds until the bucket has filled to `level`."""
        return max(0.0, (level - self.level) * MINUTE / self.size)


class Limits:
    """Limits requests and tokens per minute for each caller, and concurrent requests for all callers together."""

    def __init__(self, options: ServerOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[tuple[What, str], Bucket] = OrderedDict()
        self._running = 0
        self.adopt(options)

    def adopt(self, options: ServerOptions) -> None:
        """Apply changed limits. What callers have already used still counts."""
        # Of every caller whose key has none of its own.
        self._default = Allowance(options.rate_limit, options.token_rate_limit)
        self._max_concurrent = options.max_concurrent

    def admit(self, exchange: Exchange) -> None:
        """Count one request of a caller, and report what is left in headers. Raises `ServerError`.

        A request beyond the limit of concurrent requests is refused here, before its body is read.
        """
        self._check_place()
        self.count(exchange)
        if tokens := self._allowance_of(exchange).tokens:
            # How many tokens are used is known only at the end.
            bucket = self._bucket("tokens", exchange, tokens)
            _report(exchange, "tokens", bucket)
            least = tokens / 2 if exchange.background else 0
            if bucket.level <= least:
                raise _exceeded("tokens", tokens, bucket.until(least + 1))

    def count(self, exchange: Exchange, cost: float = 1) -> None:
        """Count what is no request to a model. A line of a batch leaves half of its owner's limit to other requests.
        Raises `ServerError`."""
        if not (requests := self._allowance_of(exchange).requests):
            return
        least = cost + ((requests - 1) / 2 if exchange.background else 0)
        bucket = self._bucket("requests", exchange, requests)
        taken = bucket.level >= least
        bucket.level -= cost if taken else 0
        _report(exchange, "requests", bucket)
        if not taken:
            raise _exceeded("requests", requests, bucket.until(least))

    def enter(self) -> None:
        """Count a request as running; `leave` undoes it. Raises `ServerError`."""
        self._check_place()
        self._running += 1

    def _check_place(self) -> None:
        if self._max_concurrent is not None and self._running >= self._max_concurrent:
            message = f"The server is busy with {self._running} requests, the most it takes at once."
            raise ServerError("overloaded", message, retry_after=1.0)

    def leave(self, exchange: Exchange, tokens: int) -> None:
        """Stop counting a request as running, and charge its caller for its tokens."""
        self._running -= 1
        allowance = self._allowance_of(exchange)
        if allowance.tokens:
            self._bucket("tokens", exchange, allowance.tokens).level -= tokens

    def _bucket(self, what: What, exchange: Exchange, size: int) -> Bucket:
        """The caller's bucket, filled up to now. `size`: the limit as it is now; a new caller's bucket is full."""
        now, name = self._clock(), (what, exchange.account)
        bucket = self._buckets.setdefault(name, Bucket(size, size, now))
        self._buckets.move_to_end(name)
        if len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        bucket.fill(size, now)
        return bucket

    def _allowance_of(self, exchange: Exchange) -> Allowance:
        if exchange.key is None or exchange.key.allowance is None:
            return self._default
        return exchange.key.allowance


def _report(exchange: Exchange, what: str, bucket: Bucket) -> None:
    """Report in OpenAI's headers how full a bucket is; `reset` is the time until it is full again."""
    exchange.headers[f"x-ratelimit-limit-{what}"] = str(bucket.size)
    exchange.headers[f"x-ratelimit-remaining-{what}"] = str(max(0, math.floor(bucket.level)))
    exchange.headers[f"x-ratelimit-reset-{what}"] = f"{bucket.until(bucket.size):.3f}s"


def _exceeded(what: str, limit: int, wait: float) -> ServerError:
    return ServerError(
        "rate_limited",
        f"The limit of {limit} {what} a minute is reached; try again in {max(1, math.ceil(wait))} seconds.",
        retry_after=max(wait, 1.0),
    )

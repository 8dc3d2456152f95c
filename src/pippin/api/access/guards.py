"""Who may come in, by host, key, origin, and what is asked for; and the API keys that callers may show.

What is not open is closed.
"""

import hashlib
import hmac
import ipaddress
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pippin.api.access.errors import Errors
from pippin.api.access.exchange import Exchange, exchange_of
from pippin.api.access.limits import Allowance
from pippin.api.http.body import check_json
from pippin.config.options.server import ServerOptions
from pippin.core.decoding import convert
from pippin.core.errors import ServerError

log = logging.getLogger(__name__)


OPEN_PATHS: Final = frozenset({"/", "/health", "/v1/health", "/healthz"})
PICTURES: Final = "/images/files/"
"""Addresses under it can't be guessed, and browsers that show pictures send no key."""
METRICS_PATHS: Final = frozenset({"/metrics", "/v1/metrics"})
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES: Final = frozenset({"localhost", "host.docker.internal"})
MANAGED: Final = ("/unload", "/load", "/models", "/cache", "/settings", "/mcp")
"""Paths under which everything that changes something is management."""


KeyText = Annotated[str, Meta(min_length=1, max_length=512)]


class KeyEntry(Struct, kw_only=True, forbid_unknown_fields=True):
    """One key as the file of keys has it; limits are for a minute, 0 is without limit."""

    key: KeyText
    name: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    rate_limit: Annotated[int, Meta(ge=0)] | None = None
    token_rate_limit: Annotated[int, Meta(ge=0)] | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is held: never its text."""

    name: str
    digest: bytes
    allowance: Allowance | None = None


class Keyring:
    """The API keys that the server accepts, each with a name and limits of its own."""

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self._keys = tuple(keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def find(self, shown: bytes) -> Key | None:
        """The key that was shown, if there is such a one.

        Every key is looked at, and digests are compared, so that time tells nothing of how near a guess was.
        """
        digest = _digest(shown)
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    @property
    def allowances(self) -> dict[str, Allowance]:
        return {key.name: key.allowance for key in self._keys if key.allowance is not None}


def load_keyring(options: ServerOptions) -> Keyring:
    """Keys of the options and of the file. Raises `ServerError` for a file that can't be understood."""
    default = Allowance(options.rate_limit, options.token_rate_limit)
    entries = [KeyEntry(key=key) for key in options.api_keys]
    if options.api_key_file is not None:
        entries += read_key_file(Path(options.api_key_file))
    return Keyring(
        [
            Key(
                name=entry.name or f"key-{number}",
                digest=_digest(entry.key.encode()),
                allowance=_allowance(entry, default),
            )
            for number, entry in enumerate(entries, 1)
        ]
    )


def read_key_file(path: Path) -> list[KeyEntry]:
    """The keys of a JSON or YAML file: a list of keys or of objects with `key`, or a mapping of names to either."""
    import yaml  # slow to import, and only needed here

    try:
        if path.stat().st_mode & 0o077:
            log.warning("Others on this machine can read or write the API keys in %s: chmod 600 it.", path)
        content: Any = yaml.safe_load(path.read_text())
        if isinstance(content, str):  # plain lines
            content = content.split()
        if isinstance(content, dict):
            content = [_named(name, entry) for name, entry in content.items()]
        entries = [{"key": entry} if isinstance(entry, str) else entry for entry in content or ()]
        keys = convert(entries, list[KeyEntry])
    except OSError as error:
        raise _unreadable(path, error.strerror or "it can't be opened") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise _unreadable(path, "it is neither JSON nor YAML") from None
    except (msgspec.ValidationError, TypeError) as error:
        raise _unreadable(path, str(error)) from None
    if not keys:  # would leave the server open to everyone
        raise _unreadable(path, "it holds no key")
    return keys


def _named(name: Any, entry: Any) -> Any:
    return {"name": name, **({"key": entry} if isinstance(entry, str) else entry)}


def _unreadable(path: Path, reason: str) -> ServerError:
    return ServerError("invalid_request", f"The file of API keys {path} can't be used: {reason}.")


def _allowance(entry: KeyEntry, default: Allowance) -> Allowance | None:
    if entry.rate_limit is None and entry.token_rate_limit is None:
        return None
    requests = default.requests if entry.rate_limit is None else entry.rate_limit
    tokens = default.tokens if entry.token_rate_limit is None else entry.token_rate_limit
    return Allowance(requests, tokens)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator decided about who may come in; read once from the options."""

    keyring: Keyring
    hosts: frozenset[str] | None  # None: any
    origins: frozenset[str]
    metrics_open: bool
    management_open: bool  # without a key
    open_management: frozenset[str]  # paths without /v1
    open_paths: tuple[str, ...]  # that need no key, with all below them; without /v1


def _management_of(options: ServerOptions) -> str:
    if options.allow_unauthenticated:
        return " Management is open too."
    opened = ", ".join(options.open_management)
    return f" Management is closed but for {opened}." if opened else " Management is closed."


def policy_of(options: ServerOptions, keyring: Keyring) -> Policy:
    loopback = is_loopback(options.host)
    if not loopback and not keyring:
        log.warning(
            "ANYONE WHO CAN REACH %s CAN USE THIS SERVER: no API key is set. Set one with --api-key.%s",
            options.host,
            _management_of(options),
        )
    hosts = frozenset(host.lower() for host in options.allowed_hosts)
    return Policy(
        keyring=keyring,
        hosts=hosts | {options.host.lower()} if loopback else hosts or None,
        origins=frozenset(options.allowed_origins),
        metrics_open=not options.metrics_auth,
        management_open=loopback or options.allow_unauthenticated,
        open_management=frozenset(options.open_management),
        open_paths=tuple(bare(path).rstrip("/") for path in options.open_paths),
    )


def is_loopback(host: str) -> bool:
    if host.lower() in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Stands in front of the router, and judges by the very path that the router will see."""

    def __init__(self, app: ASGIApp, policy: Policy, errors: Errors) -> None:
        self._app = app
        self._policy = policy
        self._errors = errors

    def adopt(self, options: ServerOptions) -> None:
        """Hold new requests to changed options."""
        self._policy = policy_of(options, load_keyring(options))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
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
        path, method = scope["path"], scope["method"]
        exchange.anonymous = bool(self._policy.keyring)
        if self._policy.keyring:
            self._check_key(headers, exchange, is_open=self._is_open(path, method))
        if is_management(path, method):
            self._check_management(headers, exchange, path)

    def _is_open(self, path: str, method: str) -> bool:
        if bare(path).startswith(PICTURES):
            return True
        if any(is_within(path, opened) for opened in self._policy.open_paths):
            return not is_management(path, method)
        return path in OPEN_PATHS or (path in METRICS_PATHS and self._policy.metrics_open)

    def _check_host(self, headers: Headers) -> None:
        """Refuse hosts that are not the server's own. Raises `ServerError`.

        A page can make its own name resolve to 127.0.0.1, but it can't make the browser hide that name.
        """
        if self._policy.hosts is None:
            return
        host = host_name(headers.get("host", ""))
        if host not in self._policy.hosts and not is_loopback(host):
            raise ServerError(
                "permission", "This server does not answer to that Host; allow it with --allowed-host."
            )

    def _check_key(self, headers: Headers, exchange: Exchange, *, is_open: bool) -> None:
        for shown in shown_keys(headers):
            key = self._policy.keyring.find(shown)
            if key is not None:
                exchange.caller, exchange.authenticated, exchange.anonymous = key.name, True, False
                return
        if not is_open:
            raise ServerError(
                "authentication",
                "Show a valid API key, as `Authorization: Bearer KEY` or as `x-api-key: KEY`.",
            )

    def _check_management(self, headers: Headers, exchange: Exchange, path: str) -> None:
        is_open = self._policy.management_open or bare(path) in self._policy.open_management
        if not exchange.authenticated and not is_open:
            raise ServerError(
                "permission",
                "Managing models needs an API key here; the operator sets one with --api-key, "
                "or opens management with --allow-unauthenticated.",
            )
        origin = headers.get("origin")
        if origin is not None and origin not in self._policy.origins:
            raise ServerError("permission", "Web pages of this origin may not manage the server.")
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            check_json(headers)


def is_management(path: str, method: str) -> bool:
    return method not in SAFE_METHODS and any(is_within(path, managed) for managed in MANAGED)


def is_within(path: str, prefix: str) -> bool:
    """Whether an address is `prefix`, which has no /v1, or below it."""
    return bare(path) == prefix or bare(path).startswith(prefix + "/")


def bare(path: str) -> str:
    """The address without its version."""
    return path.removeprefix("/v1")


def host_name(host: str) -> str:
    """A Host header without port and brackets, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") <= 1 else host


def shown_keys(headers: Headers) -> Iterable[bytes]:
    """The keys that a request shows, as bytes, for a key need not be text."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials:
        yield credentials.strip().encode("latin-1")
    if key := headers.get("x-api-key"):
        yield key.strip().encode("latin-1")

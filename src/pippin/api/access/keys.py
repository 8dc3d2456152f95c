"""API keys: who a caller is, what that caller may do, and the file in which the operator says so.

A key stands for three things. Its name is for logs. Its owner is what stored responses, running requests and prefix
caches belong to; the owner follows from the key (or from the name that the operator gave it), never from its place in a
list. Its role and rights tell what may be requested.
"""

import hashlib
import hmac
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from pippin.api.dialects.registry import unversioned
from pippin.config.options.server import ServerOptions
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.models import ModelKind

log = logging.getLogger(__name__)

KeyText = Annotated[str, Meta(min_length=1, max_length=512)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Role = Literal["admin", "user"]
OWNER_DIGITS: Final = 32
"""Hexadecimal digits of the owner of a key without a name."""


class KeyEntry(Struct, kw_only=True, forbid_unknown_fields=True):
    """One entry of the key file. Limits are per minute; 0 means no limit."""

    key: KeyText
    name: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    role: Role | None = None
    rate_limit: Annotated[int, Meta(ge=0)] | None = None
    token_rate_limit: Annotated[int, Meta(ge=0)] | None = None
    models: frozenset[Name] | None = None
    kinds: frozenset[ModelKind] | None = None
    endpoints: tuple[Annotated[str, Meta(pattern="^/")], ...] | None = None
    mcp_tools: bool = False  # a user with it may be given the operator's MCP tools


class Allowance(Struct, frozen=True):
    """What a caller may use per minute; 0 means no limit."""

    requests: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key as it is held in memory: a digest, never its text.

    It opens these models, kinds of model and endpoints; None opens all.
    """

    name: str
    owner: str
    digest: bytes = field(repr=False)
    is_admin: bool
    mcp_tools: bool
    allowance: Allowance | None
    models: frozenset[str] | None
    kinds: frozenset[ModelKind] | None
    endpoints: tuple[str, ...] | None  # without /v1; each includes everything below it

    def allows_model(self, names: Iterable[str], kind: str | None) -> bool:
        """Whether a model may be used. `names`: what the client calls it, and its id; `kind` is None if not known."""
        named = self.models is None or not self.models.isdisjoint(names)
        return named and (self.kinds is None or kind in self.kinds)


class Keyring:
    """The API keys that the server accepts: those of the last settings that could be read."""

    def __init__(self, options: ServerOptions) -> None:
        """Raises `ServerError` for keys that can't be used."""
        self.keys = keys_of(options)
        self._options = options

    def adopt(self, options: ServerOptions) -> None:
        """Read the keys again. If they can't be used, the current ones stay."""
        self._options = options
        try:
            self.keys = keys_of(options)
        except ServerError as error:
            log.error("The API keys stay as they were: %s", error.report.message)

    def __bool__(self) -> bool:
        return bool(self.keys)

    def find(self, shown: bytes) -> Key | None:
        """The key that was shown, if it exists.

        The digests of all keys are compared, so that the time it takes does not reveal how close a guess was.
        """
        digest = _digest(shown)
        found = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def of_owner(self, owner: str) -> Key | None:
        """The key of an owner; None if it is gone, and for the empty owner, who showed none."""
        return next((key for key in self.keys if key.owner == owner), None)

    @property
    def salts(self) -> bool:
        """Whether each owner has a prefix cache of its own: if callers differ, unless the operator says otherwise.

        Callers differ if there are several keys, or if open paths admit callers without the one key.
        """
        if self._options.cache_salt_per_key is not None:
            return self._options.cache_salt_per_key
        return len(self.keys) > 1 or bool(self.keys and self._options.open_paths)


def keys_of(options: ServerOptions) -> list[Key]:
    """Keys of the options and of the file. Raises `ServerError` for an unreadable file or duplicate keys."""
    own = [KeyEntry(key=key) for key in dict.fromkeys(options.api_keys)]
    filed = [] if options.api_key_file is None else read_key_file(Path(options.api_key_file))
    entries = own + filed
    keys = [
        Key(
            name=entry.name or f"key-{number}",
            owner=_owner(entry),
            digest=_digest(entry.key.encode()),
            is_admin=_is_admin(entry, alone=len(entries) == 1 or own == [entry]),
            mcp_tools=entry.mcp_tools,
            allowance=_allowance(entry, options),
            models=entry.models,
            kinds=entry.kinds,
            endpoints=entry.endpoints and tuple(unversioned(path.rstrip("/")) for path in entry.endpoints),
        )
        for number, entry in enumerate(entries, 1)
    ]
    _check_unique(keys)
    return keys


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
            content = [
                {"name": name, "key": entry} if isinstance(entry, str) else {"name": name, **entry}
                for name, entry in content.items()
            ]
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


def _unreadable(path: Path, reason: str) -> ServerError:
    return ServerError("invalid_request", f"The file of API keys {path} can't be used: {reason}.")


def _check_unique(keys: Sequence[Key]) -> None:
    """Refuse duplicates: two keys of one name would share what is stored, and a key in two entries would have two
    roles. Raises `ServerError`."""
    names: set[str] = set()
    digests: set[bytes] = set()
    for key in keys:
        if key.name in names:
            raise ServerError(
                "invalid_request",
                f"Two API keys are called {key.name!r}; a name stands for one caller, so give each its own.",
            )
        if key.digest in digests:
            raise ServerError(
                "invalid_request",
                f"The API key {key.name!r} is there twice, in --api-key or the file of keys; leave one of them out.",
            )
        names.add(key.name)
        digests.add(key.digest)


def _is_admin(entry: KeyEntry, *, alone: bool) -> bool:
    """A key without a role is a user's, except the operator's only key (`alone`) if it has no limits of its own."""
    if entry.role is not None:
        return entry.role == "admin"
    limits = (entry.rate_limit, entry.token_rate_limit, entry.models, entry.kinds, entry.endpoints)
    return alone and all(limit is None for limit in limits)


def _owner(entry: KeyEntry) -> str:
    if entry.name is not None:
        return f"name:{entry.name}"
    return "key:" + hashlib.sha256(b"pippin owner\0" + entry.key.encode()).hexdigest()[:OWNER_DIGITS]


def _allowance(entry: KeyEntry, options: ServerOptions) -> Allowance | None:
    if entry.rate_limit is None and entry.token_rate_limit is None:
        return None
    requests = options.rate_limit if entry.rate_limit is None else entry.rate_limit
    tokens = options.token_rate_limit if entry.token_rate_limit is None else entry.token_rate_limit
    return Allowance(requests, tokens)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()

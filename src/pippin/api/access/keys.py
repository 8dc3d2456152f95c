"""The API keys that clients may show, each with a name and limits of its own."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from pippin.api.access.limits import Allowance
from pippin.config.options.server import ServerOptions
from pippin.core.decoding import convert
from pippin.core.errors import ServerError

KeyText = Annotated[str, Meta(min_length=1, max_length=512)]


class KeyEntry(Struct, kw_only=True, forbid_unknown_fields=True):
    """One key as the file has it; limits are a minute's, 0 is none."""

    key: KeyText
    name: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    rate_limit: Annotated[int, Meta(ge=0)] | None = None
    token_rate_limit: Annotated[int, Meta(ge=0)] | None = None


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    digest: bytes
    allowance: Allowance | None = None


class Keyring:
    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self._keys = tuple(keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def find(self, shown: bytes) -> Key | None:
        """Looks at every key, and at digests, so that time tells nothing of how near a guess was."""
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
    """JSON or YAML: a list of keys or of objects with `key`, or a mapping of names to either."""
    import yaml  # slow to import, and only needed here

    try:
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

"""Stores logins at MCP servers in files of Pippin's folder that only its user may read."""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from pippin.config import environment
from pippin.config.mcp_file import McpServer
from pippin.core.decoding import from_json

FOLDER: Final = "mcp-logins"


class Login(Struct, kw_only=True, omit_defaults=True):
    """The library's own structs, as JSON values."""

    tokens: dict[str, Any] | None = None
    expires_at: float | None = None  # seconds since the epoch; None: not known
    client: dict[str, Any] | None = None  # Pippin's registration at the authorization server
    metadata: dict[str, Any] | None = None  # of the authorization server
    resource: dict[str, Any] | None = None  # the MCP server's metadata, which names its authorization server


def login_file(server: McpServer) -> Path:
    """The file for the login at a server. The same name with another address is another server."""
    mark = hashlib.blake2s(server.url.encode(), digest_size=4).hexdigest()
    return environment.home() / FOLDER / f"{server.name}-{mark}.json"


def read_login(path: Path) -> Login:
    """The stored login; an empty one if there is none or it is unreadable, which a new login repairs."""
    try:
        return from_json(path.read_bytes(), Login)
    except (OSError, msgspec.DecodeError):
        return Login()


def write_login(path: Path, login: Login) -> None:
    """Write atomically. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, written = tempfile.mkstemp(dir=path.parent)  # readable by its owner only
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(login))
        os.replace(written, path)
    except BaseException:
        Path(written).unlink(missing_ok=True)
        raise

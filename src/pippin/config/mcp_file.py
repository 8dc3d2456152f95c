"""The file of MCP servers (`--mcp-config`), in the format of vllm-mlx and common MCP clients."""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct, field

from pippin.config import environment
from pippin.config.errors import ConfigError, nearest
from pippin.config.yaml_file import load_document
from pippin.core.decoding import convert

Seconds = Annotated[float, Meta(gt=0, le=86400)]
Transport = Literal["stdio", "http", "sse"]

SHELLS: Final = frozenset(
    {"sh", "bash", "dash", "zsh", "fish", "ksh", "csh", "tcsh", "cmd", "powershell", "pwsh"}
)
TRANSPORTS: Final[dict[str, Transport]] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamableHttp": "http",
    "sse": "sse",
}
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
VARIABLE: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


NOT_SUPPORTED: Final = {
    "skip_security_validation": "leave it out, as no list of commands is kept here",
    "oauth": "let another program log in (command `npx`, args `mcp-remote` and the server's address), or put a token "
    "into `headers`",
}
"""Keys of an entry that other programs have, and what to do instead."""


class McpServer(Struct, frozen=True, kw_only=True):
    """One validated server: a program with arguments, or an address."""

    name: str
    transport: Transport
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)  # added to PATH and the like; nothing else is inherited
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    timeout: float = 30.0  # seconds per call
    greeting_timeout: float = 30.0  # seconds to start and list tools; package runners download first
    allowed_tools: tuple[str, ...] | None = None  # None: only tools that look something up
    denied_tools: tuple[str, ...] = ()
    trusted: bool = False  # its own claims about its tools (readOnlyHint) are believed


class McpSettings(Struct, frozen=True, kw_only=True):
    servers: tuple[McpServer, ...] = ()
    max_tool_calls: int = 10  # per request
    risky_tools: tuple[str, ...] = ()  # tools allowed whatever they do


class _Entry(Struct, kw_only=True, forbid_unknown_fields=True):
    """A server's entry in the file; fields that only other programs need are accepted."""

    transport: str | None = None
    type: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str | int | float | bool] = field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    server_url: str | None = field(default=None, name="serverUrl")
    http_url: str | None = field(default=None, name="httpUrl")
    headers: dict[str, str] = field(default_factory=dict)
    enabled: bool = True
    disabled: bool = False
    timeout: Seconds | None = None
    allow_shell: bool = False
    allowed_tools: tuple[str, ...] | None = None
    denied_tools: tuple[str, ...] = ()
    include_tools: tuple[str, ...] | None = field(default=None, name="includeTools")
    exclude_tools: tuple[str, ...] = field(default=(), name="excludeTools")
    description: Any = None
    name: Any = None
    auto_approve: Any = field(default=None, name="autoApprove")
    always_allow: Any = field(default=None, name="alwaysAllow")
    trust: bool = False


class _File(Struct, kw_only=True, forbid_unknown_fields=True):
    servers: dict[str, Any] = field(default_factory=dict)
    mcp_servers: dict[str, Any] = field(default_factory=dict, name="mcpServers")
    max_tool_calls: Annotated[int, Meta(ge=1, le=1000)] = 10
    default_timeout: Seconds = 30.0
    allowed_high_risk_tools: tuple[str, ...] = ()
    inputs: Any = None  # VS Code's, for its own prompts
    schema: Any = field(default=None, name="$schema")


def load_mcp_file(path: str, variables: Mapping[str, str] | None = None) -> McpSettings:
    """Raises `ConfigError`, whose line gives the problem and its place."""
    _check_owner(path)
    try:
        file = convert(load_document(path), _File)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}.") from None
    variables = environment.variables() if variables is None else variables
    servers = [
        _server(name, entry, f"{path}: {name}", file.default_timeout, variables)
        for name, entry in (file.servers | file.mcp_servers).items()
    ]
    return McpSettings(
        servers=tuple(server for server in servers if server is not None),
        max_tool_calls=file.max_tool_calls,
        risky_tools=file.allowed_high_risk_tools,
    )


def _check_owner(path: str) -> None:
    """Refuse a file that anyone may write: its writers can start programs as the server's user."""
    try:
        mode = Path(path).expanduser().stat().st_mode
    except OSError:
        return  # reading it reports why
    if os.name == "posix" and mode & stat.S_IWOTH:
        raise ConfigError(f"{path}: anyone may write this file, which names programs to start; chmod o-w it.")


def _server(
    name: str, given: Any, where: str, default_timeout: float, variables: Mapping[str, str]
) -> McpServer | None:
    """The server described by an entry; None if it is disabled. Raises `ConfigError`."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: a server's name must be 1 to 32 letters, digits, underscores and dashes."
        )
    for key, instead in NOT_SUPPORTED.items():
        if isinstance(given, Mapping) and key in given:
            raise ConfigError(f"{where}: {key} is not supported: {instead}.")
    try:
        entry = convert(_expanded(given, variables, where), _Entry)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}.") from None
    if entry.disabled or not entry.enabled:
        return None
    url = entry.url or entry.http_url or entry.server_url or ""
    transport = _transport(entry, url, where)
    if transport == "stdio":
        _check_command(entry, where)
    elif not url.startswith(("http://", "https://")):
        raise ConfigError(f"{where}: url must begin with http:// or https://.")
    return McpServer(
        name=name,
        transport=transport,
        command=entry.command or "",
        args=entry.args,
        env={
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in entry.env.items()
        },
        cwd=entry.cwd,
        url=url,
        headers=entry.headers,
        timeout=entry.timeout or default_timeout,
        allowed_tools=entry.include_tools if entry.allowed_tools is None else entry.allowed_tools,
        denied_tools=entry.denied_tools + entry.exclude_tools,
        trusted=entry.trust,
    )


def _transport(entry: _Entry, url: str, where: str) -> Transport:
    given = entry.transport or entry.type
    if given is None:
        return "http" if url and not entry.command else "stdio"
    if given not in TRANSPORTS:
        raise ConfigError(f"{where}: there is no transport `{given}`.{nearest(given, TRANSPORTS)}")
    return TRANSPORTS[given]


def _check_command(entry: _Entry, where: str) -> None:
    if not entry.command or "\0" in "".join((entry.command, *entry.args)):
        raise ConfigError(f"{where}: command must name a program.")
    program = PurePath(entry.command.replace("\\", "/")).name.lower().removesuffix(".exe")
    if program in SHELLS and not entry.allow_shell:
        raise ConfigError(
            f"{where}: `{program}` is a shell; name the program itself, or set allow_shell to true."
        )


def _expanded(value: Any, variables: Mapping[str, str], where: str) -> Any:
    """Replace `${NAME}` and `${NAME:-default}` with variables of this server's environment."""

    def replacement(match: re.Match[str]) -> str:
        text = variables.get(match[1], match[2])
        if text is None:
            raise ConfigError(f"{where}: the variable {match[1]} is not set.")
        return text

    match value:
        case str():
            return VARIABLE.sub(replacement, value)
        case list():
            return [_expanded(item, variables, where) for item in value]
        case dict():
            return {key: _expanded(item, variables, where) for key, item in value.items()}
        case _:
            return value

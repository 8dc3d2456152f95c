"""`pippin mcp`: lists the MCP servers in the operator's file, logs in at them, and forgets logins."""

import asyncio
import webbrowser
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from pippin.cli.arguments import Parser, some_options
from pippin.cli.local import settings_of
from pippin.cli.terminal import say
from pippin.config.errors import ConfigError, nearest
from pippin.config.mcp_file import McpServer, McpSettings, load_mcp_file
from pippin.core.errors import ServerError
from pippin.mcp.browser import PATIENCE, Paster, browser
from pippin.mcp.logins import login_file, read_login

if TYPE_CHECKING:
    from pippin.mcp.authorization import Person

PASTED_PORT: Final = 8765
"""The port of the redirect address if it is pasted from another machine's browser; nothing listens on it."""
ACTIONS: Final = ("list", "login", "logout")


def new_parser() -> Parser:
    parser = Parser(
        prog="pippin mcp",
        description="List the MCP servers of --mcp-config, log in at one that asks for it (OAuth), or forget a login.",
    )
    parser.add_argument("action", choices=ACTIONS, help="what to do")
    parser.add_argument("name", nargs="?", help="the server's name in the file")
    parser.add_argument(
        "--paste",
        action="store_true",
        help="the browser is on another machine: copy the address that it ends at to this terminal",
    )
    some_options(parser, ("config", "mcp_config"))
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    settings = _servers(settings_of(parsed).server.mcp_config)
    if parsed.action == "list":
        for server in settings.servers:
            say(f"{server.name:<20} {_described(server)}")
        return 0
    server = _named(settings, parsed.name)
    if parsed.action == "logout":
        known = login_file(server).exists()
        login_file(server).unlink(missing_ok=True)
        say(f"The login at {server.name} is forgotten." if known else f"There was no login at {server.name}.")
        return 0
    return asyncio.run(_log_in(server, paste=parsed.paste))


def _servers(path: str | None) -> McpSettings:
    if path is None:
        raise ConfigError("Name the file of MCP servers with --mcp-config.")
    return load_mcp_file(path)


def _described(server: McpServer) -> str:
    if server.transport == "stdio":
        return f"program {server.command}"
    if server.oauth is not None and server.oauth.grant == "client_credentials":
        return f"{server.url}  authorises itself"
    return f"{server.url}  {'logged in' if read_login(login_file(server)).tokens else 'no login'}"


def _named(settings: McpSettings, name: str | None) -> McpServer:
    names = [server.name for server in settings.servers]
    if name is None:
        raise ConfigError(f"Name a server: {', '.join(names) or 'the file has none'}.")
    for server in settings.servers:
        if server.name == name:
            if server.transport == "stdio":
                raise ConfigError(
                    f"{name} is a program, which is given its secrets in `env`, and asks for no login."
                )
            return server
    raise ConfigError(f"The file has no server `{name}`.{nearest(name, names)}")


async def _log_in(server: McpServer, *, paste: bool) -> int:
    port = server.oauth.redirect_port if server.oauth is not None else 0
    if paste:
        return await _connect(server, Paster(_show, _pasted, port or PASTED_PORT))
    try:
        async with browser(_opened, port) as person:
            return await _connect(server, person)
    except OSError as error:
        raise ServerError("conflict", f"Port {port} can't be listened on: {error.strerror}.") from None


async def _connect(server: McpServer, person: "Person") -> int:
    from pippin.mcp.connection import Connection

    patient = msgspec.structs.replace(server, greeting_timeout=PATIENCE + server.greeting_timeout)
    connection = Connection(patient, person)
    before = read_login(login_file(server)).tokens
    try:
        async with connection.connected():
            count = len(connection.tools)
    except Exception as error:  # the library raises many types; each means that the login failed
        raise ServerError(
            "load_failed", f"The login at {server.name} failed: {connection.reason(error)}"
        ) from error
    if read_login(login_file(server)).tokens in (None, before):
        say(f"{server.name} asked for no login. It has {count} tools.")
    else:
        say(
            f"Logged in at {server.name}, which has {count} tools. A running Pippin connects within a minute."
        )
    return 0


def _opened(address: str) -> None:
    if not webbrowser.open(address):
        _show(address)
    else:
        say("Grant access in the browser that has opened.")


def _show(address: str) -> None:
    say(f"Open this address in a browser, and grant access:\n\n  {address}\n")


def _pasted() -> str:
    return input("The browser ends at an address that it can't open. Paste it here: ")

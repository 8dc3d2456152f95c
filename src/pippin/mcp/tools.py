"""The tools of all MCP servers: which may be used, under which names, and how they are called."""

import asyncio
import logging
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence, Set
from typing import Any, Final

from msgspec import Struct

from pippin.config.mcp_file import McpServer, McpSettings
from pippin.core.completion import object_of
from pippin.core.conversation import Tool, Toolset
from pippin.core.errors import ServerError
from pippin.mcp.connection import MOST_TOOLS, CallResult, Connection, RemoteTool

log = logging.getLogger(__name__)


ALL: Final = "*"
"""In `allowed_tools`: every tool that the server has or will have; in a request: every server."""
LOOKS_UP: Final = frozenset(
    "browse calculate count current date describe fetch find get list lookup now query read search show stat time "
    "tree view weather".split()
)
"""First words of tool names that read something and change nothing."""
JOINS: Final = frozenset({"and", "then", "or"})
_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")


def may_use(server: McpServer, tool: RemoteTool, high_risk: Set[str], offered: str) -> bool:
    """Whether a tool may be used. A prompt can talk a model into any call, so a tool that is not known to be harmless
    needs the operator's permission.

    `high_risk` is the file's `allowed_high_risk_tools`, `offered` the tool's name with its server's in front.
    """
    if tool.name in server.denied_tools:
        return False
    if {tool.name, offered} & high_risk:
        return server.allowed_tools is None or bool({tool.name, ALL} & set(server.allowed_tools))
    if server.allowed_tools is not None:
        return tool.name in server.allowed_tools or ALL in server.allowed_tools
    if server.trusted and tool.read_only is not None:
        return tool.read_only
    return looks_up(tool.name) and tool.read_only is not False


def looks_up(name: str) -> bool:
    """Whether a tool's name says that it only reads: `get_weather`, `listFiles`, but not `find_and_replace`."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return bool(words) and words[0] in LOOKS_UP and not JOINS & set(words)


SEPARATOR: Final = "__"
LONGEST_NAME: Final = 64
LONGEST_RESULT: Final = 128 << 10  # characters
AT_ONCE: Final = 5  # calls
TOLD_OF: Final = 50  # tools in one log line
MOST_TOLD: Final = 4 * MOST_TOOLS  # names per server, which may list others on each connection


Call = Callable[[str, dict[str, Any]], Awaitable[CallResult]]
"""Calls a tool of a server, by the server's own name for it."""


class OfferedTool(Struct, frozen=True):
    name: str  # for models and clients: SERVER__TOOL
    server: str
    call: Call
    remote: RemoteTool

    @property
    def tool(self) -> Tool:
        schema = dict(self.remote.parameters)
        if schema.get("type") != "object":  # whatever the server sent
            schema = {"type": "object", "properties": {}}
        return Tool(self.name, self.remote.description or None, schema)


class ToolServers:
    """All servers of the operator's file. A failing server removes only its own tools."""

    def __init__(self, settings: McpSettings) -> None:
        self.most_calls = settings.max_tool_calls
        self.connections = tuple(Connection(server) for server in settings.servers)
        self._high_risk = frozenset(settings.risky_tools)
        self._told: defaultdict[str, set[str]] = defaultdict(set)
        self._running_calls = asyncio.Semaphore(AT_ONCE)

    def __bool__(self) -> bool:
        return bool(self.connections)

    def start(self) -> None:
        for connection in self.connections:
            connection.start()

    async def settled(self) -> None:
        """Wait briefly for servers that are still connecting."""
        await asyncio.gather(*(connection.settled() for connection in self.connections))

    async def close(self) -> None:
        await asyncio.gather(*(connection.close() for connection in self.connections))

    @property
    def connected(self) -> int:
        """The number of servers that are connected."""
        return sum(connection.state == "connected" for connection in self.connections)

    def tools(self) -> list[OfferedTool]:
        """The permitted tools of the connected servers."""
        return [tool for connection in self.connections for tool in self._of(connection)]

    async def offered(self, wanted: Sequence[Toolset]) -> dict[str, OfferedTool]:
        """The tools that a request asks for, by name; a server that is down offers none.

        Raises `ServerError` for a server that the operator has not configured.
        """
        found: dict[str, OfferedTool] = {}
        for toolset in wanted:
            chosen = [each for each in self.connections if toolset.server in (ALL, each.server.name)]
            if not chosen and toolset.server != ALL:
                names = ", ".join(each.server.name for each in self.connections) or "none"
                message = f"There is no MCP server {toolset.server!r}; the operator has set up: {names}."
                raise ServerError("invalid_request", message, "tools")
            await asyncio.gather(*(connection.settled() for connection in chosen))
            for connection in chosen:
                found |= {
                    tool.name: tool
                    for tool in self._of(connection)
                    if not toolset.allowed or {tool.name, tool.remote.name} & set(toolset.allowed)
                }
        return found

    async def execute(self, name: str, arguments: dict[str, Any], server: str | None = None) -> CallResult:
        """Call a tool by its offered name, or by its own name if only one tool has it; `server` restricts the search.

        Raises `ServerError` for a name that is not offered. Errors of the call itself are in the result.
        """
        offered = [tool for tool in self.tools() if server in (None, tool.server)]
        found = [tool for tool in offered if tool.name == name]
        found = found or [tool for tool in offered if tool.remote.name == name]
        if len(found) != 1:
            reason = "is offered by several servers; put SERVER__ in front" if found else "is not offered"
            raise ServerError("not_found", f"The tool {name[:LONGEST_NAME]!r} {reason}.", "tool_name")
        return await self.call(found[0], arguments)

    async def call(self, tool: OfferedTool, arguments: dict[str, Any]) -> CallResult:
        async with self._running_calls:
            result = await tool.call(tool.remote.name, arguments)
        if (surplus := len(result.text) - LONGEST_RESULT) <= 0:
            return result
        cut = f"{result.text[:LONGEST_RESULT]}\n[{surplus} more characters were cut off]"
        return CallResult(cut, result.is_error)

    async def call_with_text(self, tool: OfferedTool, arguments: str) -> CallResult:
        """Call the tool with the arguments as the model wrote them; see `call`."""
        if (decoded := object_of(arguments)) is None:
            return CallResult("The arguments must be a JSON object.", True)
        return await self.call(tool, decoded)

    def _of(self, connection: Connection) -> list[OfferedTool]:
        server = connection.server
        names = {offered_name(server.name, remote.name): remote for remote in connection.tools}
        found = [
            OfferedTool(name, server.name, connection.call, remote)
            for name, remote in names.items()
            if may_use(server, remote, self._high_risk, name)
        ]
        if server.allowed_tools is None:
            usable = {tool.remote.name for tool in found}
            self._tell_of(server, [each for each in names.values() if each.name not in usable])
        return found

    def _tell_of(self, server: McpServer, withheld: list[RemoteTool]) -> None:
        """Tell the operator, once, which tools lack permission."""
        names = sorted({tool.name for tool in withheld} - set(server.denied_tools) - self._told[server.name])
        if names and len(self._told[server.name]) < MOST_TOLD:
            self._told[server.name].update(names)
            log.warning(
                "MCP server %s: not offered, because nobody said that they may be used: %s. Name them in its "
                "`allowed_tools`, which then are all that is offered (`*`: every tool).",
                server.name,
                ", ".join(name[:LONGEST_NAME] for name in names[:TOLD_OF]),
            )


def offered_name(server: str, tool: str) -> str:
    """The name under which a tool is offered; valid as a function name in every dialect."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}{SEPARATOR}{tool}")[:LONGEST_NAME]

"""The tools of all MCP servers: which may be used, under which names, and the calling of them."""

import asyncio
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pippin.config.mcp_file import McpSettings
from pippin.core.conversation import Tool, Toolset
from pippin.core.errors import ServerError
from pippin.mcp.connection import CallFailed, Connection, RemoteTool

SEPARATOR: Final = "__"
LONGEST_NAME: Final = 64
LONGEST_RESULT: Final = 128 << 10  # characters
AT_ONCE: Final = 5  # calls
EVERY: Final = "*"
RISKY: Final = frozenset(
    "bash cmd command eval exec execute powershell rm shell spawn subprocess sudo terminal".split()
)
"""Words in a tool's name that tell of commands or code: such a tool is off unless it is listed."""
_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")


@dataclass(frozen=True, slots=True)
class OfferedTool:
    name: str  # as models and clients know it: SERVER__TOOL
    connection: Connection
    remote: RemoteTool

    @property
    def server(self) -> str:
        return self.connection.server.name

    @property
    def tool(self) -> Tool:
        return Tool(self.name, self.remote.description or None, schema_of(self.remote.parameters))


@dataclass(frozen=True, slots=True)
class CallResult:
    text: str
    is_error: bool


class ToolServers:
    """All servers of the operator's file. A server that fails takes only its own tools away."""

    def __init__(self, settings: McpSettings) -> None:
        self.most_calls = settings.max_tool_calls
        self.connections = tuple(Connection(server) for server in settings.servers)
        self._risky = frozenset(settings.risky_tools)
        self._running_calls = asyncio.Semaphore(AT_ONCE)

    def __bool__(self) -> bool:
        return bool(self.connections)

    def start(self) -> None:
        for connection in self.connections:
            connection.start()

    async def close(self) -> None:
        await asyncio.gather(*(connection.close() for connection in self.connections))

    def tools(self) -> list[OfferedTool]:
        """The tools that may be used, of the servers that are connected."""
        return [tool for connection in self.connections for tool in self._of(connection)]

    async def offered(self, wanted: Sequence[Toolset]) -> dict[str, OfferedTool]:
        """The tools that a request asks for, by name; a server that is down offers none.

        Raises `ServerError` for a server that the operator has not named.
        """
        found: dict[str, OfferedTool] = {}
        known = {connection.server.name: connection for connection in self.connections}
        for toolset in wanted:
            if toolset.server == EVERY:
                chosen: Iterable[Connection] = self.connections
            elif toolset.server in known:
                chosen = (known[toolset.server],)
            else:
                names = ", ".join(known) or "none"
                message = f"There is no MCP server {toolset.server!r}; the operator has set up: {names}."
                raise ServerError("invalid_request", message, "tools")
            chosen = list(chosen)
            await asyncio.gather(*(connection.ready() for connection in chosen))
            for connection in chosen:
                found |= {
                    tool.name: tool
                    for tool in self._of(connection)
                    if not toolset.allowed or {tool.name, tool.remote.name} & set(toolset.allowed)
                }
        return found

    async def execute(self, name: str, arguments: dict[str, Any]) -> CallResult:
        """Call a tool by the name under which it is offered, or by its own where only one has it.

        Raises `ServerError` for a name that is not offered; all that goes wrong in the call is in the result.
        """
        offered = self.tools()
        found = [tool for tool in offered if tool.name == name]
        found = found or [tool for tool in offered if tool.remote.name == name]
        if len(found) != 1:
            reason = "is offered by several servers; put SERVER__ in front" if found else "is not offered"
            raise ServerError("not_found", f"The tool {name[:LONGEST_NAME]!r} {reason}.", "tool_name")
        return await self.call(found[0], arguments)

    async def call(self, tool: OfferedTool, arguments: dict[str, Any]) -> CallResult:
        async with self._running_calls:
            try:
                text, is_error = await tool.connection.call(tool.remote.name, arguments)
            except CallFailed as error:
                return CallResult(str(error), True)
        if len(text) > LONGEST_RESULT:
            text = f"{text[:LONGEST_RESULT]}\n[{len(text) - LONGEST_RESULT} more characters were cut off]"
        return CallResult(text, is_error)

    async def call_with_text(self, tool: OfferedTool, arguments: str) -> CallResult:
        """As a model wrote them."""
        try:
            decoded = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return CallResult("The arguments are not JSON.", True)
        if not isinstance(decoded, dict):
            return CallResult("The arguments must be a JSON object.", True)
        return await self.call(tool, decoded)

    def _of(self, connection: Connection) -> list[OfferedTool]:
        server = connection.server
        names = {
            offered_name(server.name, remote.name): remote
            for remote in connection.tools
            if (server.allowed_tools is None or remote.name in server.allowed_tools)
            and remote.name not in server.denied_tools
            and self._harmless(server.name, remote.name, server.allowed_tools)
        }
        return [OfferedTool(name, connection, remote) for name, remote in names.items()]

    def _harmless(self, server: str, tool: str, allowed: tuple[str, ...] | None) -> bool:
        if not is_risky(tool):
            return True
        return bool({tool, offered_name(server, tool)} & self._risky) or tool in (allowed or ())


def offered_name(server: str, tool: str) -> str:
    """The name under which a tool is offered, which every dialect takes as a function's name."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}{SEPARATOR}{tool}")[:LONGEST_NAME]


def is_risky(tool: str) -> bool:
    return any(word.lower() in RISKY for word in _WORDS.findall(tool))


def schema_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object, whatever the server sent."""
    if parameters.get("type") == "object":
        return dict(parameters)
    return {"type": "object", "properties": {}}

"""`/v1/mcp/...`: the MCP servers that the operator has set up, their tools, and direct calls of the tools."""

from typing import Annotated, Any

from msgspec import Meta, Struct, field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.dialects.shared.fields import decode_json, invalid
from pippin.api.routing import Api, both, json_reply
from pippin.core.errors import ServerError

ToolName = Annotated[str, Meta(min_length=1, max_length=128)]


class ExecuteRequest(Struct, kw_only=True):
    """A tool, by its full name `SERVER__TOOL` or by its own name."""

    tool_name: ToolName | None = None
    tool: ToolName | None = None  # vllm-mlx's documented name of `tool_name`
    server: ToolName | None = None  # the server of the tool
    arguments: dict[str, Any] = field(default_factory=dict)


class ExecuteReply(Struct, kw_only=True):
    tool_name: str
    content: str | None
    is_error: bool
    error_message: str | None
    result: str | None  # vllm-mlx's documented name of `content`


def routes(api: Api) -> list[BaseRoute]:
    pages = McpPages(api)
    return [
        *both("/mcp/tools", pages.tools),
        *both("/mcp/servers", pages.servers),
        *both("/mcp/status", pages.status),
        *both("/mcp/execute", pages.execute, "POST", body=ExecuteRequest, answer=ExecuteReply),
    ]


class McpPages(Struct, frozen=True):
    api: Api

    async def tools(self, request: Request) -> Response:
        """The tools of all connected servers that may be used.

        Each entry is also a valid tool for Chat Completions, so that a client can pass the list on as `tools`.
        """
        await self.api.handler.tools.servers.settled()
        found: list[dict[str, Any]] = []
        for tool in self.api.handler.tools.servers.tools():
            told = {
                "name": tool.name,
                "description": tool.remote.description,
                "parameters": tool.tool.parameters,
            }
            found.append({"type": "function", "function": told, "server": tool.server, **told})
        return json_reply({"tools": found, "count": len(found)})

    async def servers(self, request: Request) -> Response:
        return json_reply({"servers": self._servers()})

    async def status(self, request: Request) -> Response:
        """Whether there are MCP servers, and how each is"""
        servers = self._servers()
        return json_reply({"enabled": bool(servers), "servers": servers})

    def _servers(self) -> list[dict[str, Any]]:
        return [
            {
                "name": connection.server.name,
                "state": connection.state,
                "transport": connection.server.transport,
                "tools_count": len(connection.tools),
                "error": connection.error,
            }
            for connection in self.api.handler.tools.servers.connections
        ]

    async def execute(self, request: Request) -> Response:
        """Call a tool. What goes wrong in the call is in the reply, with status 200."""
        asked = await self.api.handler.json_of(request, lambda body: decode_json(body, ExecuteRequest))
        if not self.api.handler.tools.servers:
            raise ServerError(
                "not_found", "No MCP server is set up; the operator does that with --mcp-config."
            )
        await self.api.handler.tools.servers.settled()
        wanted = asked.tool_name or asked.tool
        if wanted is None:
            raise invalid("tool_name", "must name the tool, or `server` and `tool` must.")
        result = await self.api.handler.tools.servers.execute(wanted, asked.arguments, asked.server)
        content = None if result.is_error else result.text
        return json_reply(
            ExecuteReply(
                tool_name=wanted,
                content=content,
                result=content,
                is_error=result.is_error,
                error_message=result.text if result.is_error else None,
            )
        )

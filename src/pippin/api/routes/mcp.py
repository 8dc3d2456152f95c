"""`/v1/mcp/...`: the MCP servers that the operator has set up, their tools, and calls of them by hand."""

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct, field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import exchange_of
from pippin.api.context import Api, both, json_reply
from pippin.api.dialects.shared.fields import decode_json
from pippin.core.errors import ServerError


class ExecuteRequest(Struct, kw_only=True):
    """A tool by the name under which it is offered, `SERVER__TOOL`."""

    tool_name: Annotated[str, Meta(min_length=1, max_length=128)]
    arguments: dict[str, Any] = field(default_factory=dict)


class ExecuteReply(Struct, kw_only=True):
    tool_name: str
    content: str | None
    is_error: bool
    error_message: str | None


def routes(api: Api) -> list[BaseRoute]:
    pages = McpPages(api)
    return [
        *both("/mcp/tools", pages.tools),
        *both("/mcp/servers", pages.servers),
        *both("/mcp/execute", pages.execute, "POST", body=ExecuteRequest, answer=ExecuteReply),
    ]


@dataclass(frozen=True)
class McpPages:
    api: Api

    async def tools(self, request: Request) -> Response:
        """The tools of all connected servers that may be used."""
        found = [
            {
                "name": tool.name,
                "description": tool.remote.description,
                "server": tool.connection.server.name,
                "parameters": tool.tool.parameters,
            }
            for tool in self.api.tool_servers.tools()
        ]
        return json_reply({"tools": found, "count": len(found)})

    async def servers(self, request: Request) -> Response:
        found = [
            {
                "name": connection.server.name,
                "state": connection.state,
                "transport": connection.server.transport,
                "tools_count": len(connection.tools),
                "error": connection.error,
            }
            for connection in self.api.tool_servers.connections
        ]
        return json_reply({"servers": found})

    async def execute(self, request: Request) -> Response:
        """Call a tool. What goes wrong in the call is in the reply, with status 200."""
        asked = await self.api.handler.uncounted_json_of(
            request, lambda body: decode_json(body, ExecuteRequest)
        )
        if not self.api.tool_servers:
            raise ServerError(
                "not_found", "No MCP server is set up; the operator does that with --mcp-config."
            )
        self.api.handler.admit(exchange_of(request.scope))
        result = await self.api.tool_servers.execute(asked.tool_name, asked.arguments)
        return json_reply(
            ExecuteReply(
                tool_name=asked.tool_name,
                content=None if result.is_error else result.text,
                is_error=result.is_error,
                error_message=result.text if result.is_error else None,
            )
        )

"""Pippin as an MCP server: serves a toolbox over the protocol, with the library `mcp`.

Requests are stateless, so clients continue after a restart, and any of several processes can answer. This is an ASGI
application without guards and bounds of its own.
"""

import base64
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import mcp_types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams

from mcp import MCPError
from pippin import __version__
from pippin.mcp.toolbox import Scope, ServedCall, ServedTool, ToolAnswer, Toolbox

Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
Context = ServerRequestContext[Any, Any]

SHOWN: Final = 64  # characters of an unknown name to quote


class McpEndpoint:
    """Answers HTTP requests that carry messages of the protocol."""

    def __init__(self, toolbox: Toolbox, instructions: str, largest: int) -> None:
        """`instructions` tell a client's model what the server is good for; `largest` is the most bytes in a
        message."""
        self._toolbox = toolbox
        self._largest = largest
        self._server: Server[Any] = Server(
            "pippin",
            version=__version__,
            title="Pippin",
            instructions=instructions,
            get_tool_input_schema=toolbox.schema_of,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A manager per request ends with the request, so there is nothing to start and close.
        manager = StreamableHTTPSessionManager(
            self._server, stateless=True, max_request_body_size=self._largest
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)

    async def _list(self, context: Context, _: PaginatedRequestParams | None) -> ListToolsResult:
        tools = await self._toolbox.tools(_scope_of(context))
        return ListToolsResult(tools=[described(tool) for tool in tools])

    async def _call(self, context: Context, asked: CallToolRequestParams) -> CallToolResult:
        if self._toolbox.schema_of(asked.name) is None:
            message = f"There is no tool {asked.name[:SHOWN]!r}; tools/list names those that there are."
            raise MCPError(mcp_types.INVALID_PARAMS, message)
        begun = time.monotonic()

        async def tell(words: str) -> None:
            await context.session.report_progress(time.monotonic() - begun, message=words)

        assert context.request_id is not None
        answer = await self._toolbox.call(
            ServedCall(
                tool=asked.name,
                arguments=asked.arguments or {},
                id=context.request_id,
                scope=_scope_of(context),
                tell=tell,
            )
        )
        return drawn(answer)


def _scope_of(context: Context) -> Scope:
    assert context.request is not None
    scope: Scope = context.request.scope
    return scope


def described(tool: ServedTool) -> mcp_types.Tool:
    """The tool in the form of `tools/list`."""
    hints = mcp_types.ToolAnnotations(
        read_only_hint=tool.read_only, destructive_hint=tool.destructive, open_world_hint=False
    )
    return mcp_types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.arguments,
        output_schema=tool.result,
        annotations=hints,
    )


def drawn(answer: ToolAnswer) -> CallToolResult:
    """The answer in the form of `tools/call`."""
    content: list[mcp_types.ContentBlock] = [mcp_types.TextContent(text=answer.text)]
    if answer.sound is not None:
        data = base64.b64encode(answer.sound.data).decode()
        content.append(mcp_types.AudioContent(data=data, mime_type=answer.sound.media))
    return CallToolResult(content=content, structured_content=answer.structured, is_error=answer.is_error)

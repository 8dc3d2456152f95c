"""OpenAI's `mcp` tool, with which a body asks for the tools of an MCP server, but without an address."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from pippin.api.dialects.shared.fields import Unused, unsupported
from pippin.core.conversation import Toolset

ToolName = Annotated[str, Meta(max_length=128)]


class ToolFilter(Struct, kw_only=True):
    tool_names: Annotated[tuple[ToolName, ...], Meta(max_length=512)] = ()
    read_only: bool | None = None


class McpTool(Struct, tag_field="type", tag="mcp", kw_only=True):
    """`server_label` names a server that the operator has set up; addresses given by clients are not called."""

    server_label: Annotated[str, Meta(min_length=1, max_length=64)]
    allowed_tools: Annotated[tuple[ToolName, ...], Meta(max_length=512)] | ToolFilter | None = None
    require_approval: Any = None
    server_url: str | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None
    headers: dict[str, str] | None = None
    authorization: str | None = None
    server_description: Unused = None
    allowed_callers: Unused = None
    defer_loading: Unused = None


def toolset_of(tool: McpTool, param: str) -> Toolset:
    for name, given in (
        ("server_url", tool.server_url),
        ("connector_id", tool.connector_id),
        ("tunnel_id", tool.tunnel_id),
        ("headers", tool.headers),
        ("authorization", tool.authorization),
    ):
        if given:
            raise unsupported(
                f"{param}.{name}",
                "only MCP servers that the operator has set up are called; name one in `server_label` alone.",
            )
    if tool.require_approval not in (None, "never"):
        raise unsupported(f"{param}.require_approval", 'calls are not held back for approval; send "never".')
    match tool.allowed_tools:
        case ToolFilter(read_only=bool()):
            raise unsupported(
                f"{param}.allowed_tools.read_only",
                "which tools only read is not known; list them in `tool_names`.",
            )
        case ToolFilter(tool_names=names):
            return Toolset(tool.server_label, names)
        case None:
            return Toolset(tool.server_label)
        case names:
            return Toolset(tool.server_label, names)

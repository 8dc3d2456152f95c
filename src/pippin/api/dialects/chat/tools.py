"""Tools and tool choice in the form of Chat Completions."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from pippin.api.dialects.shared.fields import invalid, unsupported
from pippin.api.dialects.shared.tools import FunctionDefinition, McpTool, ToolName, offer, toolset_of
from pippin.core.conversation import Tool, ToolChoice, Toolset

MAX_TOOLS = 512
_NAME = ToolName("A-Za-z0-9_-", 64, "letters, digits, underscores and dashes")


class FunctionTool(Struct, tag_field="type", tag="function", kw_only=True):
    function: FunctionDefinition


class CustomTool(Struct, tag_field="type", tag="custom", kw_only=True):
    custom: Any = None


class FunctionName(Struct, kw_only=True):
    name: str


class NamedChoice(Struct, tag_field="type", tag="function", kw_only=True):
    function: FunctionName


class CustomChoice(Struct, tag_field="type", tag="custom", kw_only=True):
    custom: Any = None


class AllowedTool(Struct, kw_only=True):
    type: str | None = None
    function: FunctionName


class AllowedTools(Struct, kw_only=True):
    mode: Literal["auto", "required"]
    tools: Annotated[tuple[AllowedTool, ...], Meta(min_length=1)]


class AllowedChoice(Struct, tag_field="type", tag="allowed_tools", kw_only=True):
    allowed_tools: AllowedTools


GivenTool = FunctionTool | CustomTool | McpTool
GivenChoice = Literal["none", "auto", "required"] | NamedChoice | CustomChoice | AllowedChoice


def tools_of(given: tuple[GivenTool, ...] | None) -> tuple[tuple[Tool, ...], tuple[Toolset, ...]]:
    """The functions, and the MCP servers."""
    tools: dict[str, Tool] = {}
    toolsets: list[Toolset] = []
    if given is not None and len(given) > MAX_TOOLS:
        raise invalid("tools", f"must not hold more than {MAX_TOOLS} tools.")
    for place, tool in enumerate(given or ()):
        if isinstance(tool, CustomTool):
            raise unsupported(
                f"tools[{place}].type", 'only tools of type "function" and "mcp" are supported.'
            )
        if isinstance(tool, FunctionTool):
            offer(tool.function, tools, f"tools[{place}].function", _NAME)
        else:
            toolsets.append(toolset_of(tool, f"tools[{place}]"))
    return tuple(tools.values()), tuple(toolsets)


def tool_choice_of(
    given: GivenChoice | None, tools: tuple[Tool, ...], toolsets: tuple[Toolset, ...] = ()
) -> ToolChoice:
    match given:
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
        case "required":
            choice = ToolChoice("required")
        case NamedChoice(function=named):
            choice = ToolChoice("required", (named.name,))
        case AllowedChoice(allowed_tools=allowed):
            choice = ToolChoice(allowed.mode, tuple(tool.function.name for tool in allowed.tools))
        case CustomChoice():
            raise unsupported("tool_choice", "custom tools are not supported; choose a function.")
    if not tools and not toolsets:
        raise invalid("tool_choice", "asks for a call, but `tools` is empty.")
    offered = {tool.name for tool in tools}
    for name in choice.names:
        if name not in offered:
            raise invalid("tool_choice", "names a tool that is not in `tools`.")
    return choice

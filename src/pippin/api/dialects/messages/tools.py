"""The tools and the tool choice of Anthropic's Messages API."""

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from pippin.api.dialects.shared.body_types import read_as
from pippin.api.dialects.shared.fields import Unused, check_depth, convert, invalid, unsupported
from pippin.core.conversation import Tool, ToolChoice, Toolset

MAX_TOOLS: Final = 1024
TOOLSET: Final = "mcp_toolset"


class ToolSpec(Struct, kw_only=True):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
    input_schema: dict[str, Any]
    type: str | None = None
    description: str | None = None
    strict: bool | None = None
    cache_control: Any = None
    allowed_callers: Unused = None
    defer_loading: Unused = None
    eager_input_streaming: Unused = None
    input_examples: Unused = None
    max_characters: Unused = None


class ToolSwitch(Struct, kw_only=True):
    enabled: bool | None = None
    defer_loading: Unused = None


class ToolsetSpec(Struct, tag_field="type", tag=TOOLSET, kw_only=True):
    """Tools of an MCP server, under the name that the operator gave it."""

    mcp_server_name: Annotated[str, Meta(min_length=1, max_length=64)]
    default_config: ToolSwitch | None = None
    configs: Annotated[dict[str, ToolSwitch], Meta(max_length=512)] | None = None
    cache_control: Any = None
    tools: Any = None


GivenTool = Annotated[dict[str, Any], read_as(ToolSpec, ToolsetSpec)]


class ChoiceSpec(Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


_TEXT: Final = {"type": "string"}
_BASH: Final = {
    "type": "object",
    "properties": {
        "command": _TEXT | {"description": "The command to run."},
        "restart": {"type": "boolean", "description": "True restarts the shell."},
    },
}
_EDITOR: Final = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
        "path": _TEXT,
        "view_range": {"type": "array", "items": {"type": "integer"}},
        "file_text": _TEXT,
        "old_str": _TEXT,
        "new_str": _TEXT,
        "insert_line": {"type": "integer"},
        "insert_text": _TEXT,
    },
    "required": ["command", "path"],
}
# Tools that the client runs, and whose schema Anthropic's models know without being told.
_BUILT_IN: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "bash_": ("Runs a command in a shell on the user's machine.", _BASH),
    "text_editor_": ("Views and edits files on the user's machine.", _EDITOR),
}


def tools_of(given: list[dict[str, Any]]) -> tuple[tuple[Tool, ...], tuple[Toolset, ...], tuple[str, ...]]:
    """The tools, the MCP servers, and the types of tools left out because they can't be run here."""
    if len(given) > MAX_TOOLS:
        raise invalid("tools", f"must hold at most {MAX_TOOLS} tools.")
    tools: list[Tool] = []
    toolsets: list[Toolset] = []
    left_out: list[str] = []
    for number, spec in enumerate(given):
        at = f"tools[{number}]"
        if spec.get("type") == TOOLSET:
            toolsets.append(_toolset(convert(spec, ToolsetSpec, at), at))
            continue
        tool = _tool(spec, at)
        if tool is not None and any(tool.name == other.name for other in tools):
            raise invalid(f"{at}.name", "must differ from the names of the other tools.")
        if tool is None:
            left_out.append(str(spec["type"]))
        else:
            tools.append(tool)
    return tuple(tools), tuple(toolsets), tuple(left_out)


def _toolset(spec: ToolsetSpec, param: str) -> Toolset:
    if spec.tools is not None:
        raise unsupported(f"{param}.tools", "the server is always asked for its tools; choose by `configs`.")
    switches = spec.configs or {}
    if spec.default_config is not None and spec.default_config.enabled is False:
        chosen = tuple(name for name, switch in switches.items() if switch.enabled)
        if not chosen:
            raise invalid(f"{param}.configs", "must switch on a tool, for `default_config` switches all off.")
        return Toolset(spec.mcp_server_name, chosen)
    for name, switch in switches.items():
        if switch.enabled is False:
            raise unsupported(
                f"{param}.configs.{name}",
                "single tools can't be switched off; switch off all by `default_config`, and on what may be called.",
            )
    return Toolset(spec.mcp_server_name)


def _tool(spec: dict[str, Any], param: str) -> Tool | None:
    kind = spec.get("type")
    if spec.get("input_schema") is None and isinstance(kind, str) and kind != "custom":
        for prefix, (description, schema) in _BUILT_IN.items():
            if kind.startswith(prefix) and isinstance(name := spec.get("name"), str):
                return Tool(name, description, schema)
        return None
    tool = convert(spec, ToolSpec, param)
    check_depth(tool.input_schema, f"{param}.input_schema")
    return Tool(tool.name, tool.description, tool.input_schema, bool(tool.strict))


def tool_choice_of(
    given: ChoiceSpec | None, tools: tuple[Tool, ...], toolsets: tuple[Toolset, ...] = ()
) -> ToolChoice:
    match given:
        case None | ChoiceSpec(type="auto"):
            return ToolChoice()
        case ChoiceSpec(type="none"):
            return ToolChoice("none")
        case ChoiceSpec(type="any"):
            if not tools and not toolsets:
                raise invalid("tool_choice", "can't be `any` without a tool in `tools` that can be called.")
            return ToolChoice("required")
        case ChoiceSpec(name=None):
            raise invalid("tool_choice.name", "is required.")
        case ChoiceSpec(name=str(name)):
            if not any(tool.name == name for tool in tools):
                raise unsupported("tool_choice.name", "it must be a tool of `tools` that can be called here.")
            return ToolChoice("required", (name,))
        case _:
            return ToolChoice()

"""The tools and the tool choice of Anthropic's Messages API."""

from typing import Annotated, Any, Final, Literal, NamedTuple

from msgspec import Meta, Struct

from pippin.api.dialects.shared.body_types import read_as
from pippin.api.dialects.shared.fields import Unused, check_depth, convert, invalid, unsupported
from pippin.api.dialects.shared.web_search import SearchFilters
from pippin.core.conversation import WEB_SEARCH, Tool, ToolChoice, Toolset, WebSearch

MAX_TOOLS: Final = 1024
TOOLSET: Final = "mcp_toolset"
SEARCHING: Final = "web_search_"


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


class SearchSpec(SearchFilters, kw_only=True):
    """Anthropic's tool that searches the web."""

    max_uses: Annotated[int, Meta(ge=1)] | None = None
    user_location: Unused = None


class GivenTools(NamedTuple):
    tools: tuple[Tool, ...]
    toolsets: tuple[Toolset, ...]
    search: WebSearch | None
    most_calls: int | None
    left_out: tuple[str, ...]  # types of tools that can't be run here


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


def tools_of(given: list[dict[str, Any]], *, searches: bool = False) -> GivenTools:
    """`searches`: the operator names what searches the web."""
    if len(given) > MAX_TOOLS:
        raise invalid("tools", f"must hold at most {MAX_TOOLS} tools.")
    tools: list[Tool] = []
    toolsets: list[Toolset] = []
    left_out: list[str] = []
    search, most_calls = None, None
    for number, spec in enumerate(given):
        at = f"tools[{number}]"
        if spec.get("type") == TOOLSET:
            toolsets.append(_toolset(convert(spec, ToolsetSpec, at), at))
            continue
        if searches and str(spec.get("type")).startswith(SEARCHING):
            asked = convert(spec, SearchSpec, at)
            search = WebSearch(asked.allowed_domains or (), asked.blocked_domains or ())
            most_calls = asked.max_uses
            continue
        tool = _tool(spec, at)
        if tool is not None and any(tool.name == other.name for other in tools):
            raise invalid(f"{at}.name", "must differ from the names of the other tools.")
        if tool is None:
            left_out.append(str(spec["type"]))
        else:
            tools.append(tool)
    return GivenTools(tuple(tools), tuple(toolsets), search, most_calls, tuple(left_out))


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


def tool_choice_of(given: ChoiceSpec | None, offered: GivenTools) -> ToolChoice:
    names = {tool.name for tool in offered.tools} | ({WEB_SEARCH} if offered.search else set())
    match given:
        case None | ChoiceSpec(type="auto"):
            return ToolChoice()
        case ChoiceSpec(type="none"):
            return ToolChoice("none")
        case ChoiceSpec(type="any"):
            if not names and not offered.toolsets:
                raise invalid("tool_choice", "can't be `any` without a tool in `tools` that can be called.")
            return ToolChoice("required")
        case ChoiceSpec(name=None):
            raise invalid("tool_choice.name", "is required.")
        case ChoiceSpec(name=str(name)):
            if name not in names:
                raise unsupported("tool_choice.name", "it must be a tool of `tools` that can be called here.")
            return ToolChoice("required", (name,))
        case _:
            return ToolChoice()

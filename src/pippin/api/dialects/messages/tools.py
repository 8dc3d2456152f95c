"""The tools and the tool choice of Anthropic's Messages API.

Some tools have no schema in a request, because Anthropic's models know it: those that a client runs get it from
`client_tools.json`, which has the members of a client's toolset as Anthropic's SDK describes them, and tools that stand
alone by the beginning of their types. Members become functions, whose names begin with that of the toolset.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from pippin.api.dialects.shared import tools as shared
from pippin.api.dialects.shared.body_types import read_as
from pippin.api.dialects.shared.fields import Unused, convert, invalid, unsupported
from pippin.core.conversation import WEB_SEARCH, Tool, ToolChoice, Toolset, WebSearch

TOOLSET: Final = "mcp_toolset"
CLIENT_TOOLSET: Final = re.compile(r"(browser|computer)_toolset_\d+")
SEPARATOR: Final = "__"


class GivenFields(Struct, kw_only=True):
    """What every tool may have."""

    strict: bool | None = None
    cache_control: Any = None
    allowed_callers: Unused = None
    defer_loading: Unused = None
    input_examples: Unused = None


class ToolSpec(GivenFields, kw_only=True):
    name: shared.ToolName
    input_schema: dict[str, Any]
    type: str | None = None
    description: str | None = None
    eager_input_streaming: Unused = None
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


class SearchSpec(GivenFields, kw_only=True):
    """Anthropic's tool that searches the web. A query is strict in any case."""

    type: str
    name: str = WEB_SEARCH
    allowed_domains: shared.Domains | None = None
    blocked_domains: shared.Domains | None = None
    max_uses: Annotated[int, Meta(ge=1)] | None = None
    user_location: shared.Location | None = None
    response_inclusion: Literal["full"] | None = None

    @property
    def wanted(self) -> WebSearch:
        return shared.wish(self.allowed_domains, self.blocked_domains, self.user_location)


class ClientToolset(Struct, kw_only=True):
    """Tools of one family that the client runs, all but those that are switched off."""

    type: str
    configs: dict[str, ToolSwitch] | None = None
    cache_control: Any = None


class ClientTool(GivenFields, kw_only=True):
    """A tool that the client runs, and whose schema Anthropic's models know without being told."""

    type: str
    name: shared.ToolName
    max_characters: Unused = None  # of the client's view of a file
    display_width_px: int | None = None
    display_height_px: int | None = None
    display_number: Unused = None  # of the client's screens
    enable_zoom: bool | None = None


FAMILIES: Final = ("browser", "computer")


class Change(Struct, kw_only=True):
    """What a `tool_addition` or `tool_removal` names: a tool by its name or definition, or the tools of a server."""

    type: Literal["tool_reference", "mcp_toolset_reference", "tool_definition"]
    name: str | None = None
    server_name: str | None = None
    definition: dict[str, Any] | None = None


class ToolChange(Struct, kw_only=True):
    type: Literal["tool_addition", "tool_removal"]
    tool: Change
    cache_control: Any = None


GivenTool = Annotated[dict[str, Any], read_as(ToolSpec, ToolsetSpec, ClientTool, ClientToolset, SearchSpec)]
GivenTools = Annotated[list[GivenTool], Meta(max_length=1024)]


class ChoiceSpec(Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


_OLDEST_ACTIONS: Final = (
    *("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click"),
    *("double_click", "screenshot", "cursor_position"),
)


@dataclass(frozen=True)
class Toolbox:
    """The tools of a request."""

    tools: tuple[Tool, ...]
    toolsets: tuple[Toolset, ...]  # of MCP servers
    search: SearchSpec | None
    left_out: tuple[str, ...]  # types of tools that can't be run here


def toolbox_of(given: list[dict[str, Any]], *, searches: bool) -> Toolbox:
    """`searches`: the operator names what searches the web."""
    tools: list[Tool] = []
    toolsets: list[Toolset] = []
    left_out: list[str] = []
    searching = shared.place_of_search(given) if searches else None
    search = None
    for number, spec in enumerate(given):
        at = f"tools[{number}]"
        if number == searching:
            search = convert(spec, SearchSpec, at)
            continue
        if spec.get("type") == TOOLSET:
            toolsets.append(_toolset(convert(spec, ToolsetSpec, at), at))
            continue
        found = list(_tools(spec, at))
        if {tool.name for tool in found} & {tool.name for tool in tools}:
            raise invalid(f"{at}.name", "must differ from the names of the other tools.")
        if not found:
            left_out.append(str(spec["type"]))
        tools += found
    return Toolbox(tuple(tools), tuple(toolsets), search, tuple(left_out))


def changed_tools(given: list[dict[str, Any]], changes: list[tuple[str, ToolChange]]) -> list[dict[str, Any]]:
    """The tools on offer after all changes in the conversation. Raises `ServerError` naming a change that can't
    be made."""
    known = {_key(spec): spec for spec in given}
    offered = dict(known)
    for param, change in changes:
        tool, adds = change.tool, change.type == "tool_addition"
        if tool.definition is not None and adds:
            key = _key(tool.definition)
            known[key] = tool.definition
        else:
            key = str(tool.server_name or tool.name)
        if key not in known:
            raise invalid(param, "must be a tool of `tools`, or one that an earlier `tool_addition` defines.")
        if adds:
            offered[key] = known[key]
        else:
            offered.pop(key, None)
    return list(offered.values()) if changes else given


def _key(spec: dict[str, Any]) -> str:
    """The name by which changes refer to a tool, an MCP server, or a client's toolset."""
    family = CLIENT_TOOLSET.fullmatch(str(spec.get("type")))
    return family[1] if family else str(spec.get("mcp_server_name") or spec.get("name"))


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


def _tools(spec: dict[str, Any], param: str) -> Iterator[Tool]:
    """The functions of a tool; none if it can't be run by the client."""
    kind = spec.get("type")
    if spec.get("input_schema") is not None or not isinstance(kind, str) or kind == "custom":
        tool = convert(spec, ToolSpec, param)
        schema = shared.arguments_schema(tool.input_schema, f"{param}.input_schema")
        yield Tool(tool.name, tool.description, schema, bool(tool.strict))
    elif family := CLIENT_TOOLSET.fullmatch(kind):
        members = shared.client_tools(__name__)[family[1]]
        configs = convert(spec, ClientToolset, param).configs or {}
        for name in configs:
            if name not in members:
                raise invalid(f"{param}.configs.{name}", f"is no tool of the toolset `{family[1]}`.")
        for name, member in members.items():
            if name not in configs or configs[name].enabled is not False:
                yield Tool(member_name(family[1], name), member.description, member.input_schema)
    elif kind.startswith("computer_"):
        yield _computer(convert(spec, ClientTool, param), param)
    else:
        if not kind[-8:].isdecimal():  # the date that ends each of Anthropic's types
            raise unsupported(f"{param}.type", "tools have an `input_schema`, or a type of Anthropic's.")
        for prefix, known in shared.client_tools(__name__)[""].items():
            if kind.startswith(prefix):
                given = convert(spec, ClientTool, param)
                yield Tool(given.name, known.description, known.input_schema, bool(given.strict))


def _computer(given: ClientTool, param: str) -> Tool:
    """The older form of the computer's toolset: one function, whose `action` names the member."""
    for side in ("display_width_px", "display_height_px"):
        if getattr(given, side) is None:
            raise invalid(f"{param}.{side}", "is required: the model is told the size of the screen.")
    members = shared.client_tools(__name__)["computer"]
    oldest = given.type == "computer_20241022"
    actions = [
        name for name in (_OLDEST_ACTIONS if oldest else members) if name != "zoom" or given.enable_zoom
    ]
    properties: dict[str, Any] = {"action": {"type": "string", "enum": actions}}
    for action in actions:
        properties = members[action].input_schema["properties"] | properties
    size = f"{given.display_width_px}x{given.display_height_px}"
    lines = [f"Uses the user's computer, whose screen has {size} pixels, by one action:"]
    lines += [f"- {action}: {members[action].description}" for action in actions]
    schema = {"type": "object", "properties": properties, "required": ["action"]}
    return Tool(given.name, "\n".join(lines), schema, bool(given.strict))


def member_name(toolset: str | None, name: str) -> str:
    """The function's name for a tool, which may be a member of a client's toolset."""
    return f"{toolset}{SEPARATOR}{name}" if toolset else name


def families_of(given: Iterable[dict[str, Any]]) -> frozenset[str]:
    """The names of the client's toolsets among these tools."""
    found = (CLIENT_TOOLSET.fullmatch(str(spec.get("type"))) for spec in given)
    return frozenset(each[1] for each in found if each)


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
            meant = {name, *(member_name(family, name) for family in FAMILIES)}
            family = name + SEPARATOR if name in FAMILIES else None  # all its members
            chosen = tuple(
                tool.name for tool in tools if tool.name in meant or (family and tool.name.startswith(family))
            )
            if not chosen:
                raise unsupported("tool_choice.name", "it must be a tool of `tools` that can be called here.")
            return ToolChoice("required", chosen)
        case _:
            return ToolChoice()

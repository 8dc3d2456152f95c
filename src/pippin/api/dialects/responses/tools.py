"""Maps the tools of the Responses API to functions, and calls of those functions back to its items.

A model can only call functions. Custom tools, shells and patches become functions with a fixed schema. Functions in a
namespace get its name as a prefix. All other tools, which no client can run, are left out with a warning.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from pippin.api.dialects.shared import tools as shared
from pippin.api.dialects.shared.body_types import read_as
from pippin.api.dialects.shared.engine_fields import TextFormat
from pippin.api.dialects.shared.fields import Unused, convert, invalid, unsupported
from pippin.core.conversation import WEB_SEARCH, Tool, ToolChoice, Toolset, WebSearch
from pippin.core.decoding import from_json

CallKind = Literal["function", "custom", "local_shell", "shell", "apply_patch"]

CUSTOM_INPUT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The tool's input, as plain text."}},
    "required": ["input"],
    "additionalProperties": False,
}
SEPARATOR: Final = "__"


class Described(Struct, kw_only=True):
    name: shared.ToolName
    description: str | None = None
    defer_loading: Unused = None


class Called(Described, kw_only=True):
    allowed_callers: Unused = None
    asynchronous: Unused = msgspec.field(name="async", default=None)


class FunctionSpec(Called, tag_field="type", tag="function", kw_only=True):
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    output_schema: Unused = None


class GrammarInput(Struct, tag_field="type", tag="grammar"):
    syntax: Literal["lark", "regex"]
    definition: str


class CustomSpec(Called, tag_field="type", tag="custom", kw_only=True):
    format: TextFormat | GrammarInput | None = None


class NamespaceSpec(Described, tag_field="type", tag="namespace", kw_only=True):
    tools: list[Annotated[dict[str, Any], read_as(FunctionSpec, CustomSpec)]]


class Named(Struct, kw_only=True):
    name: shared.ToolName
    type: str | None = None
    namespace: str | None = None


class AllowedToolsChoice(Struct, tag_field="type", tag="allowed_tools", kw_only=True):
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


GivenTool = Annotated[dict[str, Any], read_as(FunctionSpec, CustomSpec, NamespaceSpec, shared.McpTool)]
GivenTools = Annotated[list[GivenTool], Meta(max_length=1024)]
GivenChoice = Annotated[str | dict[str, Any] | None, read_as(AllowedToolsChoice, Named)]


@dataclass(frozen=True, slots=True)
class ToolOrigin:
    """The tool that a function stands for: the kind of item for its calls, and the name in that item."""

    kind: CallKind
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of a request, as the model sees them and as the request gave them."""

    tools: tuple[Tool, ...] = ()
    origins: dict[str, ToolOrigin] = field(default_factory=dict)  # by the name that the model sees
    toolsets: tuple[Toolset, ...] = ()  # of MCP servers
    search: WebSearch | None = None
    left_out: tuple[str, ...] = ()  # types of tools that can't be run here

    def origin(self, name: str) -> ToolOrigin:
        return self.origins.get(name, ToolOrigin("function", name))


def flat_name(name: str, namespace: str | None) -> str:
    """The name under which the model sees a function in a namespace."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith(SEPARATOR) else f"{namespace}{SEPARATOR}{name}"


def toolbox_of(given: list[dict[str, Any]], *, own: int, searches: bool) -> Toolbox:
    """The first `own` tools are the request's; those after them came with items, and replace others of the same name.
    `searches`: the operator names what searches the web."""
    tools: dict[str, Tool] = {}
    origins: dict[str, ToolOrigin] = {}
    left_out: list[str] = []
    toolsets: list[Toolset] = []
    searching = shared.place_of_search(given) if searches else None
    search = None
    for number, spec in enumerate(given):
        at = f"tools[{number}]"
        if number == searching:
            search = convert(spec, shared.SearchTool, at).wanted
            continue
        if spec.get("type") == "mcp":
            toolsets.append(shared.toolset_of(convert(spec, shared.McpTool, at), at))
            continue
        for tool, origin in _tools_of(spec, at, left_out):
            if number < own and tool.name in tools:
                raise invalid(f"{at}.name", "is the name of an earlier tool too; give each its own.")
            tools[tool.name] = tool
            origins[tool.name] = origin
    return Toolbox(tuple(tools.values()), origins, tuple(toolsets), search, tuple(left_out))


def _tools_of(
    spec: dict[str, Any], param: str, left_out: list[str], namespace: str | None = None
) -> list[tuple[Tool, ToolOrigin]]:
    match spec.get("type"):
        case "function":
            function = convert(spec, FunctionSpec, param)
            schema = shared.arguments_schema(function.parameters, f"{param}.parameters")
            name = flat_name(function.name, namespace)
            tool = Tool(name, function.description, schema, bool(function.strict))
            return [(tool, ToolOrigin("function", function.name, namespace))]
        case "custom":
            return [_custom(spec, param, namespace)]
        case "namespace" if namespace is None:
            space = convert(spec, NamespaceSpec, param)
            return [
                found
                for number, inner in enumerate(space.tools)
                for found in _tools_of(
                    {"type": "function"} | inner, f"{param}.tools[{number}]", left_out, space.name
                )
            ]
        case "local_shell" | "shell" | "apply_patch" as kind if namespace is None:
            known = shared.client_tools(__name__)[""][kind]
            return [(Tool(kind, known.description, known.input_schema), ToolOrigin(kind, kind))]
        case str(kind):
            left_out.append(kind)
            return []
        case _:
            raise invalid(f"{param}.type", "is required, and must be a string.")


def _custom(spec: dict[str, Any], param: str, namespace: str | None) -> tuple[Tool, ToolOrigin]:
    custom = convert(spec, CustomSpec, param)
    description, parameters = custom.description or "", CUSTOM_INPUT
    match custom.format:
        case GrammarInput(syntax, definition):
            grammar = f"The input follows this {syntax} grammar:\n{definition}"
            description = f"{description}\n\n{grammar}".strip()
            # A JSON string can be constrained by a regular expression, but not by a Lark grammar.
            if syntax == "regex":
                text = {**CUSTOM_INPUT["properties"]["input"], "pattern": f"^(?:{definition})$"}
                parameters = {**CUSTOM_INPUT, "properties": {"input": text}}
    strict = parameters is not CUSTOM_INPUT
    tool = Tool(flat_name(custom.name, namespace), description or None, parameters, strict)
    return tool, ToolOrigin("custom", custom.name, namespace)


def tool_choice_of(given: str | dict[str, Any] | None, toolbox: Toolbox) -> ToolChoice:
    """Raises `ServerError` if the forced tool can't be called."""
    match given:
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
        case "required":
            return ToolChoice("required", _offered((), toolbox))
        case str():
            raise invalid("tool_choice", "must be `none`, `auto`, `required`, or an object.")
    match given.get("type"):
        case "allowed_tools":
            allowed = convert(given, AllowedToolsChoice, "tool_choice")
            names = tuple(
                name
                for number, tool in enumerate(allowed.tools)
                if (name := _name_of(tool, f"tool_choice.tools[{number}]", toolbox)) is not None
            )
            if not names and allowed.mode == "auto":
                return ToolChoice("none")
            return ToolChoice(allowed.mode, _offered(names, toolbox) if allowed.mode == "required" else names)
        case str():
            name = _name_of(given, "tool_choice", toolbox)
            if name is None:
                raise unsupported(
                    "tool_choice", "that tool runs on OpenAI's servers; force a function instead."
                )
            return ToolChoice("required", (name,))
        case _:
            raise invalid("tool_choice.type", "is required, and must be a string.")


def _offered(names: tuple[str, ...], toolbox: Toolbox) -> tuple[str, ...]:
    if not toolbox.tools and not toolbox.toolsets and toolbox.search is None:
        raise invalid("tool_choice", "can't be `required` without a tool in `tools` that can be called.")
    return names


def _name_of(choice: dict[str, Any], param: str, toolbox: Toolbox) -> str | None:
    """The function that a choice names; None for a tool that was left out."""
    kind = choice.get("type")
    if kind in ("function", "custom"):
        named = convert(choice, Named, param)
        if (flat := flat_name(named.name, named.namespace)) in toolbox.origins:
            return flat
        for name, origin in toolbox.origins.items():
            if origin.name == named.name and origin.kind in ("function", "custom"):
                return name
        raise invalid(f"{param}.name", "must be the name of a tool in `tools`.")
    if isinstance(kind, str) and kind in shared.client_tools(__name__)[""]:
        if kind not in toolbox.origins:
            raise invalid(f"{param}.type", "must be a tool that stands in `tools`.")
        return kind
    return WEB_SEARCH if toolbox.search is not None and str(kind).startswith(WEB_SEARCH) else None


def custom_input(arguments: str) -> str:
    """The input text in the arguments of a custom tool's function; arguments that break the schema are the input."""
    try:
        return from_json(arguments, dict[str, str])["input"]
    except (msgspec.DecodeError, KeyError):
        return arguments

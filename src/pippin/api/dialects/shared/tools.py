"""Tools as several dialects offer them: functions, and the tools of an MCP server (OpenAI's `mcp` tool).

Schemas of parameters are only looked at as far as every template relies on them; the grammar compiler checks the rest.
"""

import re
from collections.abc import Collection
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from pippin.api.dialects.shared.fields import (
    Unused,
    check_depth,
    check_refused,
    invalid,
    refused,
    unsupported,
)
from pippin.core.conversation import Tool, ToolCall, Toolset

ServerTool = Annotated[str, Meta(max_length=128)]
OF_AN_ADDRESS: Final = refused(
    "only MCP servers that the operator has set up are called; name one in `server_label` alone."
)

_PLAIN: Final = re.compile(r"[A-Za-z0-9_]{1,64}")
"""A name chosen by the client that is safe for the log."""


class FunctionDefinition(Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolName(NamedTuple):
    """What the name of a function may be in a dialect; `words` say the same of `characters`."""

    characters: str
    longest: int
    words: str


def offer(function: FunctionDefinition, tools: dict[str, Tool], param: str, name: ToolName) -> None:
    """Add a function to the offered tools. Raises `ServerError` naming what can't be offered."""
    if not re.fullmatch(f"[{name.characters}]{{1,{name.longest}}}", function.name):
        raise invalid(f"{param}.name", f"must be 1 to {name.longest} {name.words}.")
    if function.name in tools:
        raise invalid(f"{param}.name", "is the name of an earlier tool too; give each its own.")
    parameters = function.parameters
    if parameters is not None:
        if parameters.get("type", "object") != "object":
            raise invalid(f"{param}.parameters.type", 'must be "object": arguments are passed by name.')
        if parameters.get("properties", {}) is None:
            parameters = parameters | {"properties": {}}
        if not isinstance(parameters.get("properties", {}), dict):
            raise invalid(f"{param}.parameters.properties", "must map names to schemas.")
        check_depth(parameters, f"{param}.parameters")
    tools[function.name] = Tool(function.name, function.description, parameters, bool(function.strict))


def left_out(**kinds: Collection[str]) -> tuple[str, ...]:
    """The warnings about what can't be run or read here: the kinds of `tools`, `parts` and so on."""
    named = {
        what: dict.fromkeys(name if _PLAIN.fullmatch(name) else "unknown" for name in found)
        for what, found in kinds.items()
    }
    return tuple(
        f"{what.capitalize()} of type {', '.join(names)} can't be used here, so they were left out of the prompt."
        for what, names in named.items()
        if names
    )


class CalledFunction(Struct, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    arguments: str | dict[str, Any] | None = None


class GivenCall(Struct, kw_only=True):
    """A call in the form of Chat Completions."""

    id: str | None = None
    type: str | None = None
    function: CalledFunction | None = None
    custom: Any = None


def call_of(call: GivenCall, at: str) -> ToolCall:
    if call.function is None:
        if call.custom is not None or call.type == "custom":
            raise unsupported(f"{at}.custom", "only calls of functions are supported.")
        raise invalid(f"{at}.function", "is required.")
    name = call.function.name
    return ToolCall(call.id or name, name, arguments_of(call.function.arguments))


def arguments_of(arguments: str | dict[str, Any] | None) -> str:
    if isinstance(arguments, dict):  # some clients send parsed arguments
        return msgspec.json.encode(arguments).decode()
    return arguments or "{}"


class CallsInOrder:
    """The calls of a conversation without a result, in order: in some APIs neither calls nor results need ids."""

    def __init__(self) -> None:
        self._made = 0
        self._open: list[tuple[str, str]] = []  # id and name

    def made(self, id: str | None, name: str) -> str:
        """The id of a call: its own, or a new one."""
        call_id = id or f"call_{self._made}"
        self._made += 1
        self._open.append((call_id, name))
        return call_id

    def answered(self, id: str | None, name: str | None) -> tuple[str, str | None]:
        """The id and name of the call that a result belongs to."""
        fits = [each for each in self._open if (each[0] == id if id else name in (None, each[1]))]
        if not fits:
            return id or name or f"call_{self._made}", name
        self._open.remove(fits[0])
        return fits[0]


class ToolFilter(Struct, kw_only=True):
    tool_names: Annotated[tuple[ServerTool, ...], Meta(max_length=512)] = ()
    read_only: bool | None = None


class McpTool(Struct, tag_field="type", tag="mcp", kw_only=True):
    """`server_label` names a server that the operator has set up; addresses given by clients are not called."""

    server_label: Annotated[str, Meta(min_length=1, max_length=64)]
    allowed_tools: Annotated[tuple[ServerTool, ...], Meta(max_length=512)] | ToolFilter | None = None
    require_approval: Any = None
    server_url: Annotated[str | None, OF_AN_ADDRESS] = None
    connector_id: Annotated[str | None, OF_AN_ADDRESS] = None
    tunnel_id: Annotated[str | None, OF_AN_ADDRESS] = None
    headers: Annotated[dict[str, str] | None, OF_AN_ADDRESS] = None
    authorization: Annotated[str | None, OF_AN_ADDRESS] = None
    server_description: Unused = None
    allowed_callers: Unused = None
    defer_loading: Unused = None


def toolset_of(tool: McpTool, param: str) -> Toolset:
    check_refused(tool, param)
    if tool.require_approval not in (None, "never"):
        raise unsupported(f"{param}.require_approval", 'calls are not held back for approval; send "never".')
    allowed = tool.allowed_tools or ()
    if isinstance(allowed, ToolFilter):
        if allowed.read_only is not None:
            raise unsupported(
                f"{param}.allowed_tools.read_only",
                "which tools only read is not known; list them in `tool_names`.",
            )
        allowed = allowed.tool_names
    return Toolset(tool.server_label, allowed)

"""Tools as several dialects offer them: functions, those of an MCP server (OpenAI's `mcp` tool), searches of the web.

Schemas of parameters are only looked at as far as every template relies on them; the grammar compiler checks the rest.
"""

import re
from collections.abc import Collection, Sequence
from functools import cache
from importlib import resources
from typing import Annotated, Any, Final, Literal

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
from pippin.core.conversation import WEB_SEARCH, FoundPage, Tool, ToolCall, Toolset, WebSearch
from pippin.core.decoding import from_json

MAX_MESSAGES: Final = 16_384
MAX_TOOLS: Final = 512

ServerTool = Annotated[str, Meta(max_length=128)]
OF_AN_ADDRESS: Final = refused(
    "only MCP servers that the operator has set up are called; name one in `server_label` alone."
)

_PLAIN: Final = re.compile(r"[A-Za-z0-9_]{1,64}")
"""A name chosen by the client that is safe for the log."""


ToolName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,128}$")]


class FunctionDefinition(Struct, kw_only=True):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def offer(function: FunctionDefinition, tools: dict[str, Tool], param: str) -> None:
    """Add a function to the offered tools. Raises `ServerError` naming what can't be offered."""
    if function.name in tools:
        raise invalid(f"{param}.name", "is the name of an earlier tool too; give each its own.")
    parameters = arguments_schema(function.parameters, f"{param}.parameters")
    tools[function.name] = Tool(function.name, function.description, parameters, bool(function.strict))


def arguments_schema(given: dict[str, Any] | None, param: str) -> dict[str, Any] | None:
    """The schema of a function's arguments, as far as every template relies on it. Raises `ServerError`."""
    if given is None:
        return None
    if given.get("type", "object") != "object":
        raise invalid(f"{param}.type", 'must be "object": arguments are passed by name.')
    if given.get("properties", {}) is None:
        given = given | {"properties": {}}
    if not isinstance(given.get("properties", {}), dict):
        raise invalid(f"{param}.properties", "must map names to schemas.")
    check_depth(given, param)
    return given


class ClientTool(Struct, frozen=True):
    """A tool that a client runs, and whose schema the API's own models know without being told."""

    description: str
    input_schema: dict[str, Any]


@cache
def client_tools(module: str) -> dict[str, dict[str, ClientTool]]:
    """The tools of `client_tools.json` beside a module, by toolset; in the toolset without a name those that stand
    alone."""
    data = resources.files(module.rpartition(".")[0]).joinpath("client_tools.json").read_bytes()
    return from_json(data, dict[str, dict[str, ClientTool]])


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
    name, arguments = call.function.name, call.function.arguments
    if isinstance(arguments, dict):  # some clients send parsed arguments
        arguments = msgspec.json.encode(arguments).decode()
    return ToolCall(call.id or name, name, arguments or "{}")


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
    tool_names: Annotated[tuple[ServerTool, ...], Meta(max_length=512)] | None = None
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
    allowed, at = tool.allowed_tools, f"{param}.allowed_tools"
    if isinstance(allowed, ToolFilter):
        if allowed.read_only is not None:
            raise unsupported(
                f"{at}.read_only", "which tools only read is not known; list them in `tool_names`."
            )
        allowed, at = allowed.tool_names, f"{at}.tool_names"
    if allowed == ():
        raise invalid(at, "must name a tool; leave it out for all, or leave out the server.")
    return Toolset(tool.server_label, allowed or ())


Word = Annotated[str, Meta(max_length=253)]
Domains = Annotated[tuple[Annotated[Word, Meta(min_length=1)], ...], Meta(max_length=100)]
ContextSize = Literal["low", "medium", "high"] | None
RESULTS: Final[dict[ContextSize, int]] = {"low": 3, None: 5, "medium": 5, "high": 10}


class SearchFilters(Struct, kw_only=True):
    allowed_domains: Domains | None = None
    blocked_domains: Domains | None = None


class Location(Struct, kw_only=True):
    """Where the user is, about."""

    type: Literal["approximate"] = "approximate"
    city: Word | None = None
    region: Word | None = None
    country: Word | None = None
    timezone: Word | None = None


class ChatLocation(Struct, kw_only=True):
    type: Literal["approximate"] = "approximate"
    approximate: Location | None = None


class ChatSearch(Struct, kw_only=True):
    """The options of a search in Chat Completions."""

    search_context_size: ContextSize = None
    user_location: ChatLocation | None = None

    @property
    def wanted(self) -> WebSearch:
        location = self.user_location.approximate if self.user_location else None
        return wish(None, None, location, self.search_context_size)


class SearchTool(Struct, kw_only=True):
    """The tool of Responses that searches."""

    type: str
    search_context_size: ContextSize = None
    user_location: Location | None = None
    filters: SearchFilters | None = None
    search_content_types: tuple[Literal["text"], ...] | None = None
    external_web_access: Literal[True] | None = None  # the operator's search is of the web as it is

    @property
    def wanted(self) -> WebSearch:
        filters = self.filters or SearchFilters()
        return wish(
            filters.allowed_domains, filters.blocked_domains, self.user_location, self.search_context_size
        )


def wish(
    allowed: Domains | None, blocked: Domains | None, location: Location | None, size: ContextSize = None
) -> WebSearch:
    named = location or Location()
    words = filter(None, (named.city, named.region, named.country, named.timezone))
    return WebSearch(allowed or (), blocked or (), RESULTS[size], ", ".join(words))


def place_of_search(given: Sequence[dict[str, Any]]) -> int | None:
    """Which of the tools searches the web. Raises `ServerError` for a second one."""
    places = [place for place, spec in enumerate(given) if str(spec.get("type")).startswith(WEB_SEARCH)]
    if len(places) > 1:
        raise invalid(f"tools[{places[1]}].type", "is a second search of the web; send one.")
    return next(iter(places), None)


def pages_of(text: str) -> list[FoundPage]:
    """The pages in the result of a search; none in that of one that failed."""
    try:
        return from_json(text, list[FoundPage])
    except msgspec.MsgspecError:
        return []


def citations_of(text: str, pages: list[FoundPage]) -> list[dict[str, Any]]:
    """Where a text names the address of a page: the indexes of the first character, and of that after the last."""
    found = []
    for page in pages:
        start = text.find(page.url)
        if start >= 0:
            place = {"start_index": start, "end_index": start + len(page.url)}
            found.append({**place, "url": page.url, "title": page.title})
    return sorted(found, key=lambda each: each["start_index"])

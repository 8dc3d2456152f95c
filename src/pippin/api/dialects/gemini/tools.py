"""The tools, the tool choice and the schemas of Gemini's API."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from pippin.api.dialects.gemini.content import AT_ONCE
from pippin.api.dialects.shared.body_types import camel
from pippin.api.dialects.shared.fields import Unused, check_depth, invalid, refused
from pippin.api.dialects.shared.tools import FunctionDefinition, offer
from pippin.core.conversation import Tool, ToolChoice

MAX_TOOLS: Final = 1024


class FunctionDeclaration(Struct, kw_only=True, rename="camel"):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None
    response: Unused = None
    response_json_schema: Unused = None
    behavior: Literal["UNSPECIFIED", "BLOCKING"] | None = None


class GivenTool(Struct, kw_only=True, rename="camel"):
    """Functions, and tools that run at Google's, which are left out."""

    function_declarations: tuple[FunctionDeclaration, ...] | None = None
    mcp_servers: Annotated[
        Any, refused("only MCP servers that the operator has set up are called; name one in `x-mcp-servers`.")
    ] = None
    retrieval: Any = None
    computer_use: Any = None
    file_search: Any = None
    google_search: Any = None
    google_search_retrieval: Any = None
    google_maps: Any = None
    code_execution: Any = None
    enterprise_web_search: Any = None
    parallel_ai_search: Any = None
    exa_ai_search: Any = None
    url_context: Any = None


class CallingConfig(Struct, kw_only=True, rename="camel"):
    mode: str | None = None
    allowed_function_names: tuple[str, ...] | None = None
    stream_function_call_arguments: Annotated[Any, AT_ONCE] = None


class ToolConfig(Struct, kw_only=True, rename="camel"):
    function_calling_config: CallingConfig | None = None
    retrieval_config: Unused = None
    include_server_side_tool_invocations: Unused = None


def tools_of(given: Sequence[GivenTool]) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    """The functions, and the names of tools left out because they run at Google's. Raises `ServerError`."""
    tools: dict[str, Tool] = {}
    left_out: list[str] = []
    for place, tool in enumerate(given):
        at = f"tools[{place}]"
        left_out += [camel(name) for name in tool.__struct_fields__[2:] if getattr(tool, name) is not None]
        for number, function in enumerate(tool.function_declarations or ()):
            where, parameters = f"{at}.functionDeclarations[{number}]", function.parameters_json_schema
            if function.parameters is not None and parameters is not None:
                raise invalid(f"{where}.parametersJsonSchema", "can't be combined with `parameters`.")
            if function.parameters is not None:
                parameters = json_schema_of(function.parameters, f"{where}.parameters")
            name, description = function.name, function.description
            offered = FunctionDefinition(name=name, description=description, parameters=parameters)
            offer(offered, tools, where)
        if len(tools) > MAX_TOOLS:
            raise invalid("tools", f"must hold at most {MAX_TOOLS} functions.")
    return tuple(tools.values()), tuple(left_out)


def chosen(config: ToolConfig | None, tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools as they are offered, and which of them may or must be called. Raises `ServerError`."""
    asked = (config and config.function_calling_config) or CallingConfig()
    at = "toolConfig.functionCallingConfig"
    names = asked.allowed_function_names or ()
    for place, name in enumerate(names):
        if all(name != tool.name for tool in tools):
            raise invalid(f"{at}.allowedFunctionNames[{place}]", "must be a function of `tools`.")
    match (asked.mode or "AUTO").upper():
        case "AUTO" | "MODE_UNSPECIFIED":
            return tools, ToolChoice("auto", names)
        case "VALIDATED":
            return tuple(replace(tool, strict=True) for tool in tools), ToolChoice("auto", names)
        case "NONE":
            return tools, ToolChoice("none")
        case "ANY" if tools:
            return tools, ToolChoice("required", names)
        case "ANY":
            raise invalid(f"{at}.mode", "can't be `ANY` without a function in `tools`.")
        case _:
            raise invalid(f"{at}.mode", "must be `AUTO`, `ANY`, `NONE` or `VALIDATED`.")


_COUNTS: Final = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")


def json_schema_of(schema: dict[str, Any], at: str) -> dict[str, Any]:
    """The JSON schema that a schema of Google's means: its types are in capitals, null is a flag, and counts are texts.

    Source: https://ai.google.dev/api/caching#Schema. Raises `ServerError` for what is no schema.
    """
    check_depth(schema, at)
    return _converted(schema, at)


def _converted(given: Any, at: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise invalid(at, "must be a schema.")
    fields = {camel(name): value for name, value in given.items() if value is not None}
    is_text = str(fields.get("type")).upper() == "STRING"
    order, nullable = fields.pop("propertyOrdering", None), fields.pop("nullable", False)
    made: dict[str, Any] = {}
    for name, value in fields.items():
        here = f"{at}.{name}"
        match name, value:
            case "properties" | "defs", dict():
                inner = {key: _converted(each, f"{here}.{key}") for key, each in value.items()}
                made["$defs" if name == "defs" else name] = inner
            case "anyOf", list():
                made[name] = [_converted(each, f"{here}[{place}]") for place, each in enumerate(value)]
            case "items" | "additionalProperties", dict():
                made[name] = _converted(value, here)
            case "type", str() if value.upper() != "TYPE_UNSPECIFIED":
                made[name] = value.lower()
            case "ref", _:
                made["$ref"] = str(value).replace("#/defs/", "#/$defs/")
            case _ if name in _COUNTS:
                made[name] = _count(value, here)
            # Formats of numbers say how many bits they have, and `enum` that the texts are listed.
            case "format", _ if value != "enum" and is_text:
                made[name] = value
            case "format" | "type" | "example", _:
                pass
            case _:
                made[name] = value
    if isinstance(order, list) and isinstance(properties := made.get("properties"), dict):
        made["properties"] = {name: properties[name] for name in order if name in properties} | properties
    if not nullable:
        return made
    outside = {name: made.pop(name) for name in ("$defs",) if name in made}
    return {"anyOf": [made, {"type": "null"}], **outside}


def _count(given: Any, at: str) -> int:
    """A 64-bit number, which is a text in the JSON of protocol buffers."""
    if isinstance(given, int) or (isinstance(given, str) and given.isdecimal() and len(given) < 19):
        return int(given)
    raise invalid(at, "must be a whole number from 0.")

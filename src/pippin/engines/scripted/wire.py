"""The markup in which a scripted model writes its tool calls, and values that fit a JSON schema."""

import json
from collections.abc import Sequence
from typing import Any

from pippin.core.conversation import Tool, ToolChoice
from pippin.core.errors import ServerError
from pippin.engines.scripted.script import ScriptedCall
from pippin.output.tool_format import ToolFormat

WRITTEN = ("json_tools", "mistral")


def write_calls(format: ToolFormat, calls: Sequence[ScriptedCall]) -> str:
    """Raw text of the calls. Raises `ServerError` for a format that is not written here."""
    objects = [json.dumps({"name": call.name, "arguments": call.arguments}) for call in calls]
    if not objects:
        return ""
    if format.name == "mistral":
        return f"[TOOL_CALLS][{', '.join(objects)}]"
    if format.name == "json_tools":
        return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in objects)
    raise ServerError(
        "unsupported",
        f"The scripted model writes calls as {' or '.join(WRITTEN)}; write the markup of {format.name!r} in `say`.",
    )


def required_call(tools: Sequence[Tool], choice: ToolChoice) -> ScriptedCall | None:
    """A call that satisfies `required`, where the script says nothing: the first tool, the plainest arguments."""
    if choice.mode != "required":
        return None
    for tool in tools:
        if not choice.names or tool.name in choice.names:
            value = example(tool.parameters or {})
            return ScriptedCall(tool.name, value if isinstance(value, dict) else {})
    return None


def example(schema: Any, depth: int = 8) -> Any:
    """The plainest value that fits a schema, as far as it is made of common words."""
    if not isinstance(schema, dict) or depth == 0:
        return None
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for word in ("anyOf", "oneOf", "allOf"):
        if schema.get(word):
            return example(schema[word][0], depth - 1)
    match schema.get("type"):
        case "object" | None:
            properties = schema.get("properties", {})
            names = schema.get("required", list(properties))
            return {name: example(properties.get(name, {}), depth - 1) for name in names}
        case "array":
            return [example(schema.get("items", {}), depth - 1)] * max(0, schema.get("minItems", 0))
        case "string":
            return "x" * max(4, schema.get("minLength", 0))
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return True
        case [first, *_]:
            return example(schema | {"type": first}, depth - 1)
        case _:
            return None

"""The markup in which a scripted model writes its tool calls, and values that fit a JSON schema."""

import json
from collections.abc import Sequence
from typing import Any, Final

from pippin.core.conversation import Tool, ToolChoice
from pippin.core.errors import ServerError
from pippin.engines.scripted.script import ScriptedCall
from pippin.output.tool_format import ToolFormat

WRITTEN: Final = ("json_tools", "mistral")
DEEPEST: Final = 8  # levels of a made-up value


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


def required_call(tools: Sequence[Tool], choice: ToolChoice, most: int) -> ScriptedCall | None:
    """A call that satisfies `required`, where the script says nothing: the first tool, the plainest arguments.

    The arguments take about `most` characters at most.
    """
    if choice.mode != "required":
        return None
    for tool in tools:
        if not choice.names or tool.name in choice.names:
            value = example(tool.parameters or {}, most)
            return ScriptedCall(tool.name, value if isinstance(value, dict) else {})
    return None


def example(schema: Any, most: int) -> Any:
    """The plainest value that fits a schema, as far as it is made of common words.

    A value whose JSON would be longer than `most` characters is cut short soon after them, so that it takes no more
    memory than the longest answer.
    """
    return _Example(most).value(schema, DEEPEST)


class _Example:
    """Builds one value, and stops where its JSON has used up the characters that it may take."""

    def __init__(self, most: int) -> None:
        self._left = most

    def value(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, dict) or depth == 0:
            return self._counted(None)
        if "const" in schema:
            return self._counted(schema["const"])
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return self._counted(schema["enum"][0])
        for word in ("anyOf", "oneOf", "allOf"):
            if isinstance(schema.get(word), list) and schema[word]:
                return self.value(schema[word][0], depth - 1)
        match schema.get("type"):
            case "object" | None:
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._counted("x" * min(max(4, _number(schema, "minLength")), max(4, self._left)))
            case "integer" | "number":
                return self._counted(schema.get("minimum", 0))
            case "boolean":
                return self._counted(True)
            case [first, *_]:
                return self.value(schema | {"type": first}, depth - 1)
            case _:
                return self._counted(None)

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        self._left -= len("{}")
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        names = schema.get("required")
        built = {}
        for name in names if isinstance(names, list) else properties:
            if self._left <= 0:
                break
            if isinstance(name, str):
                self._left -= len(name) + len('"": ')
                built[name] = self.value(properties.get(name, {}), depth - 1)
        return built

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        self._left -= len("[]")
        built: list[Any] = []
        while len(built) < _number(schema, "minItems") and self._left > 0:
            self._left -= len(", ")
            built.append(self.value(schema.get("items", {}), depth - 1))
        return built

    def _counted(self, value: Any) -> Any:
        self._left -= len(json.dumps(value))
        return value


def _number(schema: dict[str, Any], word: str) -> int:
    """A count that a schema asks for; 0 where it is no count."""
    given = schema.get(word, 0)
    return int(given) if isinstance(given, int | float) and given == given and given < float("inf") else 0

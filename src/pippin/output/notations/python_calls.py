"""Calls written as in Python: `name(key=value, ...)`."""

import json
import re
from typing import Any

from pippin.output.notations.arguments import Arguments
from pippin.output.notations.literals import Notation, read_literal, word_value
from pippin.output.stream import Calls, Malformed, Reading

_NAME_END = re.compile(r"[^\w.\-]")
_LINE_END = re.compile(r"[\n`]")
_WORD_START = re.compile(r"[A-Za-z_]")


def write_python_call(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={_written(value)}' for key, value in arguments.items())})"


def _written(value: Any) -> str:
    """A value in Python's notation; strings and numbers are written as JSON, which is valid Python too."""
    match value:
        case bool() | None:
            return repr(value)
        case list():
            return f"[{', '.join(map(_written, value))}]"
        case dict():
            return "{" + ", ".join(f"{_written(key)}: {_written(held)}" for key, held in value.items()) + "}"
        case _:
            return json.dumps(value, ensure_ascii=False)


def read_python_call(
    calls: Calls, notation: Notation, *, listed: bool = False, shell: bool = False
) -> Reading[None]:
    """Read one call. A `listed` call is read to its end although its tool was not offered: others may follow.

    `shell` also admits an offered tool followed by the rest of the line as the only argument that it needs, without
    parentheses.
    """
    source = calls.source
    name = yield from source.word(_NAME_END)
    schema = calls.schema(name)
    yield from source.span(" ")
    if (yield from source.literal("(")):
        calls.start(name, listed=listed)
        calls.end((yield from read_python_arguments(calls, name, notation)))
        return
    if not shell or schema is None:
        raise Malformed
    calls.start(name)
    arguments = Arguments(schema, "json")
    needed, keys = schema.get("required") or (), list[str]()
    if (yield from source.peek()) not in ("", "\n", "`"):
        keys = [next(iter(needed or schema.get("properties") or ()), "arg0")]
        arguments.add(keys[0], (yield from source.word(_LINE_END, limit=1 << 16)).strip())
    if source.cut or not set(needed) <= {*keys}:  # prose may begin with the name of a tool
        raise Malformed
    calls.end(arguments.json)


def read_python_arguments(calls: Calls, name: str, notation: Notation) -> Reading[str]:
    """Read the arguments from after the opening parenthesis through the closing one: `key=value`, or only a value,
    whose key is the schema's next property."""
    source = calls.source
    schema = calls.schema(name)
    arguments = Arguments(schema, "json")
    positions = iter((schema or {}).get("properties") or ())
    yield from source.space()
    while (yield from source.literal(")")) is None:
        key, value = None, ""
        if _WORD_START.fullmatch((yield from source.peek())):
            word = yield from source.word(_NAME_END)
            yield from source.space()
            if (yield from source.literal("=")):
                key = word
            else:
                value = word_value(word, notation)
        key = next(positions, None) if key is None else key
        if key is None:
            raise Malformed
        if not value:
            yield from source.space()
            value = yield from read_literal(source, notation)
        arguments.put(key, value)
        yield from source.space()
        if (yield from source.literal(",")) is None and (yield from source.peek()) != ")":
            raise Malformed
        yield from source.space()
    return arguments.json

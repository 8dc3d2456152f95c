"""Calls written as in Python: `name(key=value, ...)`."""

import json
import re
from collections.abc import Iterator
from typing import Any

from pippin.output.notations.arguments import ArgumentsWriter
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
        yield from read_python_arguments(calls, name, notation)
    elif shell and schema is not None:
        calls.start(name)
        arguments = ArgumentsWriter(calls.arguments, schema, "json")
        needed, keys = schema.get("required") or (), list[str]()
        if (yield from source.peek()) not in ("", "\n", "`"):
            keys = [next(iter(needed or schema.get("properties") or ()), "arg0")]
            arguments.begin(keys[0])
            arguments.put((yield from source.word(_LINE_END, limit=1 << 16)).strip())
            arguments.end()
        arguments.close()
        if source.cut or not set(needed) <= {*keys}:  # prose may begin with the name of a tool
            raise Malformed
    else:
        raise Malformed
    calls.end()


def read_python_arguments(calls: Calls, name: str, notation: Notation) -> Reading[None]:
    """Read the arguments from after the opening parenthesis through the closing one."""
    source = calls.source
    schema = calls.schema(name)
    arguments = ArgumentsWriter(calls.arguments, schema, "json")
    positions = iter((schema or {}).get("properties") or ())
    yield from source.space()
    while (yield from source.literal(")")) is None:
        yield from _read_argument(calls, arguments, notation, positions)
        yield from source.space()
        if (yield from source.literal(",")) is None and (yield from source.peek()) != ")":
            raise Malformed
        yield from source.space()
    arguments.close()


def _read_argument(
    calls: Calls, arguments: ArgumentsWriter, notation: Notation, positions: Iterator[str]
) -> Reading[None]:
    """Read `key=value`, or only a value, whose key is the schema's next property."""
    source = calls.source
    key, value = None, ""
    if _WORD_START.fullmatch((yield from source.peek())):
        word = yield from source.word(_NAME_END)
        yield from source.space()
        if (yield from source.literal("=")):
            key = word
        else:
            value = word_value(word, notation)
    if key is None:
        key = next(positions, None)
        if key is None:
            raise Malformed
    arguments.member(key)
    if value:
        arguments.raw(value)
    else:
        yield from source.space()
        yield from read_literal(source, arguments.raw, notation)

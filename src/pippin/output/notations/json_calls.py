"""Reads calls that are JSON objects: a name, and arguments that are passed on as they arrive."""

import json
from collections.abc import Callable

from pippin.output.notations.arguments import ArgumentsWriter, quoted
from pippin.output.notations.json_text import (
    StringDecoder,
    read_object_rest,
    read_string_body,
    read_value,
)
from pippin.output.notations.literals import PYTHON, read_key, read_literal
from pippin.output.stream import Calls, Malformed, Markers, Reading

NAMES = ("name", "tool_name", "function", "function_name")
ARGUMENTS = ("arguments", "parameters", "args", "input")


class _Call:
    """One call while its object is read. Arguments that come before the name are held back.

    A `bare` call has no marker: it counts only if it has no keys but those of a call. A `listed` call is read to its
    end although its tool was not offered, because others may follow.
    """

    def __init__(self, calls: Calls, *, bare: bool, listed: bool) -> None:
        self._calls, self.bare, self._listed = calls, bare, listed
        self._held: list[str] = []
        self.given = False  # there is a member for the arguments
        self.others: dict[str, str] = {}  # the JSON of members that are neither the name nor the arguments
        self.name: str | None = None

    def start(self, name: str) -> None:
        if not name:
            raise Malformed
        if self.name is None:
            self.name = name
            self._calls.start(name, listed=self._listed)
            self._calls.arguments("".join(self._held))

    def put(self, text: str) -> None:
        if self.name is not None:
            self._calls.arguments(text)
            return
        self._held.append(text)

    def end(self) -> None:
        """End the call. Where no member has the arguments, the model may have written each argument as a member."""
        if self.name is None:
            raise Malformed
        if not self.given:
            known = (self._calls.schema(self.name) or {}).get("properties") or {}
            own = [f"{quoted(key)}: {value}" for key, value in self.others.items() if key in known]
            self._calls.arguments(f"{{{', '.join(own)}}}")
        self._calls.end()


def read_call(
    calls: Calls, *, bare: bool = False, listed: bool = False, opened: bool = False
) -> Reading[None]:
    """Read one object `{"name": ..., "arguments": {...}}`, under any of the usual keys, in any order."""
    call = _Call(calls, bare=bare, listed=listed)
    if not opened:
        yield from calls.source.expect("{")
    yield from calls.source.literal("{")  # early templates of Qwen 2.5 show double braces
    yield from _read_members(calls, call)
    call.end()
    yield from calls.source.span("}")


def read_array(calls: Calls, *, bare: bool = False) -> Reading[None]:
    """Read objects from after the opening bracket through the closing one. Malformed if there is no object."""
    source = calls.source
    yield from source.space()
    yield from read_call(calls, bare=bare, listed=True)
    yield from source.space()
    while (yield from source.literal("]")) is None:
        yield from source.expect(",")
        yield from source.space()
        if (yield from source.literal("]")):
            return
        yield from read_call(calls, bare=bare, listed=True)
        yield from source.space()


def read_arguments(
    calls: Calls, put: Callable[[str], None] | None = None, *, opened: bool = False
) -> Reading[None]:
    """Read only arguments: an object, JSON inside a string, or null. `opened`: the opening brace is taken."""
    source = calls.source
    put = put or calls.arguments
    if opened:
        put("{")
        yield from read_object_rest(source, put)
        return
    first = yield from source.peek()
    if first == '"':
        source.take(1)
        decoder = StringDecoder(put)
        yield from read_string_body(source, decoder)
        decoder.end()
    elif first == "n":
        yield from source.expect("null")
    else:
        yield from read_value(source, put)


def read_arguments_or_none(calls: Calls, put: Callable[[str], None] | None = None) -> Reading[None]:
    """Read arguments before a marker. A tool without parameters may have none."""
    yield from calls.source.space()
    if (yield from calls.source.peek()) != "<":
        yield from read_arguments(calls, put)


def read_message_call(calls: Calls, name: str, ends: tuple[str, ...]) -> Reading[None]:
    """Read a message that consists of the arguments of a call to `name`: JSON, or the text of a tool that takes one."""
    source = calls.source
    calls.start(name)
    yield from source.space()
    if (yield from source.peek()) == "{":
        yield from read_value(source, calls.arguments)
    else:
        yield from _read_only_argument(calls, name, ends)
    calls.end()


def _read_only_argument(calls: Calls, name: str, ends: tuple[str, ...]) -> Reading[None]:
    """Read a text through its end marker as the value of the tool's only property. Malformed if it has several."""
    schema = calls.schema(name)
    keys = list((schema or {}).get("properties") or ())
    if len(keys) > 1:
        raise Malformed
    arguments = ArgumentsWriter(calls.arguments, schema, "string")
    if keys:
        arguments.begin(keys[0])
    held: list[str] = []
    found = yield from calls.source.until(Markers(ends), arguments.put if keys else held.append, calls.counts)
    if (found is None and calls.source.truncated) or "".join(held).strip():
        raise Malformed
    if keys:
        arguments.end()
    arguments.close()


def _read_members(calls: Calls, call: _Call) -> Reading[None]:
    source = calls.source
    while True:
        yield from source.space()
        if (yield from source.literal("}")):
            return
        if call.name is not None and (yield from source.peek()) in ("<", "") and not source.truncated:
            return
        key = yield from read_key(source, PYTHON)
        yield from source.space()
        yield from _read_member(calls, call, key)
        yield from source.space()
        yield from source.literal(",")


def _read_member(calls: Calls, call: _Call, key: str) -> Reading[None]:
    first = yield from calls.source.peek()
    value: list[str] = []
    if key == "function" and first == "{":
        calls.source.take(1)
        yield from _read_members(calls, call)
    elif key in NAMES and first in ('"', "'"):
        yield from read_literal(calls.source, value.append, PYTHON)
        call.start(json.loads("".join(value)))
    elif key in ARGUMENTS:
        call.given = True
        yield from read_arguments(calls, call.put)
    elif call.bare and key not in ("type", "id"):
        raise Malformed
    else:
        yield from read_value(calls.source, value.append)
        call.others[key] = "".join(value)

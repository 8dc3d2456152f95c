"""Reads calls that are JSON objects: a name and arguments."""

import json

from pippin.output.notations.arguments import Arguments
from pippin.output.notations.json_text import decoded, quoted, read_rest, read_string, read_value
from pippin.output.notations.literals import PYTHON, read_key, read_literal
from pippin.output.stream import Calls, Malformed, Markers, Reading

NAMES = ("name", "tool_name", "function", "function_name")
ARGUMENTS = ("arguments", "parameters", "args", "input")


class _Call:
    """One call while its object is read.

    A `bare` call has no marker: it counts only if it has no keys but those of a call. A `listed` call is read to its
    end although its tool was not offered, because others may follow.
    """

    def __init__(self, calls: Calls, *, bare: bool, listed: bool) -> None:
        self._calls, self._bare, self._listed = calls, bare, listed
        self._name: str | None = None
        self._arguments: str | None = None
        self._others: dict[str, str] = {}  # the JSON of members that are neither the name nor the arguments

    def read(self) -> Reading[None]:
        """Read the members through the closing brace."""
        source = self._calls.source
        while True:
            yield from source.space()
            if (yield from source.literal("}")):
                return
            if self._name is not None and (yield from source.peek()) in ("<", "") and not source.truncated:
                return
            key = yield from read_key(source, PYTHON)
            yield from source.space()
            yield from self._read_member(key)
            yield from source.space()
            yield from source.literal(",")

    def _read_member(self, key: str) -> Reading[None]:
        source = self._calls.source
        first = yield from source.peek()
        if key == "function" and first == "{":
            source.take(1)
            yield from self.read()
        elif key in NAMES and first in ('"', "'"):
            self._start(json.loads((yield from read_literal(source, PYTHON))))
        elif key in ARGUMENTS:
            given = self._arguments or ""
            self._arguments = given + (yield from read_arguments(self._calls))
        elif self._bare and key not in ("type", "id"):
            raise Malformed
        else:
            self._others[key] = yield from read_value(source)

    def _start(self, name: str) -> None:
        if not name:
            raise Malformed
        if self._name is None:
            self._name = name
            self._calls.start(name, listed=self._listed)

    def end(self) -> None:
        """End the call. Where no member has the arguments, the model may have written each argument as a member."""
        if self._name is None:
            raise Malformed
        known = (self._calls.schema(self._name) or {}).get("properties") or {}
        own = [f"{quoted(key)}: {value}" for key, value in self._others.items() if key in known]
        self._calls.end(f"{{{', '.join(own)}}}" if self._arguments is None else self._arguments)


def read_call(
    calls: Calls, *, bare: bool = False, listed: bool = False, opened: bool = False
) -> Reading[None]:
    """Read one object `{"name": ..., "arguments": {...}}`, under any of the usual keys, in any order."""
    call = _Call(calls, bare=bare, listed=listed)
    if not opened:
        yield from calls.source.expect("{")
    yield from calls.source.literal("{")  # early templates of Qwen 2.5 show double braces
    yield from call.read()
    call.end()
    yield from calls.source.span("}")


def read_array(calls: Calls, *, bare: bool = False) -> Reading[None]:
    """Read objects from after the opening bracket through the closing one. Malformed if there is no object."""
    source = calls.source
    found: str | None = None
    while found is None:
        yield from source.space()
        yield from read_call(calls, bare=bare, listed=True)
        yield from source.space()
        if (found := (yield from source.expect(",", "]"))) == ",":
            yield from source.space()
            found = yield from source.literal("]")


def read_arguments(calls: Calls, *, opened: bool = False) -> Reading[str]:
    """Read only arguments: an object, JSON inside a string, or null. `opened`: the opening brace is taken."""
    source = calls.source
    if opened:
        return (yield from read_rest(source, "{"))
    first = yield from source.peek()
    if first == '"':
        return decoded((yield from read_string(source)))
    if first == "n":
        yield from source.expect("null")
        return ""
    return (yield from read_value(source))


def read_arguments_or_none(calls: Calls) -> Reading[str]:
    """Read arguments before a marker. A tool without parameters may have none."""
    yield from calls.source.space()
    return "" if (yield from calls.source.peek()) == "<" else (yield from read_arguments(calls))


def read_message_call(calls: Calls, name: str, ends: tuple[str, ...]) -> Reading[None]:
    """Read a message that consists of the arguments of a call to `name`: JSON, or the text of a tool that takes one."""
    calls.start(name)
    yield from calls.source.space()
    if (yield from calls.source.peek()) == "{":
        calls.end((yield from read_value(calls.source)))
    else:
        calls.end((yield from _read_only_argument(calls, name, ends)))


def _read_only_argument(calls: Calls, name: str, ends: tuple[str, ...]) -> Reading[str]:
    """Read a text through its end marker as the value of the tool's only property. Malformed if it has several."""
    schema = calls.schema(name)
    keys = list((schema or {}).get("properties") or ())
    if len(keys) > 1:
        raise Malformed
    pieces: list[str] = []
    found = yield from calls.source.until(Markers(ends), pieces.append, calls.counts)
    text = "".join(pieces)
    if (found is None and calls.source.truncated) or (text.strip() and not keys):
        raise Malformed
    arguments = Arguments(schema, "string")
    for key in keys:
        arguments.add(key, text)
    return arguments.json

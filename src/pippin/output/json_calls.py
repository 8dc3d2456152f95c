"""Reading calls that are JSON objects: a name, and arguments that are handed on as they come."""

from collections.abc import Callable

from pippin.output.json_text import StringDecoder, discard, read_string, read_string_body, read_value
from pippin.output.source import Malformed, Reading
from pippin.output.tool_format import Calls

NAMES = ("name", "tool_name", "function", "function_name")
ARGUMENTS = ("arguments", "parameters", "args", "input")
HELD_LIMIT = 1 << 20  # characters of arguments that stand before their name


class _Call:
    """One call while its object is read: arguments wait for the name if they come first."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._held: list[str] = []
        self._size = 0
        self.name: str | None = None

    def start(self, name: str) -> None:
        if not name:
            raise Malformed
        if self.name is None:
            self.name = name
            self._calls.writer.start_call(name)
            self._calls.writer.arguments("".join(self._held))

    def put(self, text: str) -> None:
        if self.name is not None:
            self._calls.writer.arguments(text)
            return
        self._size += len(text)
        if self._size > HELD_LIMIT:
            raise Malformed
        self._held.append(text)


def read_call(calls: Calls) -> Reading[None]:
    """One object `{"name": ..., "arguments": {...}}`, under any of the usual keys, in any order."""
    call = _Call(calls)
    yield from _read_object(calls, call)
    if call.name is None:
        raise Malformed
    calls.writer.end_call()


def read_calls(calls: Calls) -> Reading[None]:
    """One object, or an array of them."""
    source = calls.source
    yield from source.space()
    if (yield from source.literal("[")) is None:
        yield from read_call(calls)
        return
    yield from source.space()
    while (yield from source.literal("]")) is None:
        yield from read_call(calls)
        yield from source.space()
        yield from source.literal(",")
        yield from source.space()


def read_arguments(calls: Calls, put: Callable[[str], None] | None = None) -> Reading[None]:
    """The arguments alone: an object, the same as a string, or null for none."""
    source = calls.source
    put = put or calls.writer.arguments
    first = yield from source.peek()
    if first == '"':
        source.take(1)
        yield from read_string_body(source, StringDecoder(put))
    elif first == "n":
        yield from source.expect("null")
    else:
        yield from read_value(source, put)


def _read_object(calls: Calls, call: _Call) -> Reading[None]:
    source = calls.source
    yield from source.expect("{")
    while True:
        yield from source.space()
        if (yield from source.literal("}")):
            return
        if call.name is not None and (yield from source.peek()) == "<":
            return
        key = yield from read_string(source)
        yield from source.space()
        yield from source.expect(":")
        yield from source.space()
        yield from _read_member(calls, call, key)
        yield from source.space()
        yield from source.literal(",")


def _read_member(calls: Calls, call: _Call, key: str) -> Reading[None]:
    first = yield from calls.source.peek()
    if key == "function" and first == "{":
        yield from _read_object(calls, call)
    elif key in NAMES and first == '"':
        call.start((yield from read_string(calls.source)))
    elif key in ARGUMENTS:
        yield from read_arguments(calls, call.put)
    else:
        yield from read_value(calls.source, discard)

"""Reads calls written as tags: the function's name in a head, and one element for each argument."""

import re
from dataclasses import dataclass
from typing import Literal

from pippin.output.notations.arguments import ArgumentsWriter, Untyped
from pippin.output.notations.json_text import read_value
from pippin.output.stream import Malformed, Markers, Put, Reading, Source
from pippin.output.tool_format import Calls

_ATTRIBUTE = re.compile(r'(\w+)\s*=\s*(?:"([^"]*)"|\'([^\']*)\'|([^\s"\'>]+))')
_NAME = re.compile(r"[\w.:/$-]{1,128}")
_HEAD_LIMIT = 1024
_CDATA = "<![CDATA["


@dataclass(frozen=True, kw_only=True)
class Tags:
    """The layout `opens` head `head_end` value `close` for each argument, then one of `ends`.

    A head is `=key`, or attributes, or only the key if values have an opening tag of their own.
    """

    opens: str
    head_end: str = ">"
    value_opens: str | None = None
    close: str
    ends: tuple[str, ...]
    abrupt: tuple[str, ...] = ()  # ends of the call that also end a value whose own end is missing
    lines: bool = False  # a value is on lines of its own
    cdata: bool = False
    untyped: Untyped = "json"
    function_head_end: str = ">"
    whole: tuple[str, ...] = ()  # tags around arguments written as one JSON object


def tool_name(text: str) -> str:
    """The name of a tool in the text of a format, bare or quoted. Malformed if it can't be a tool's name."""
    name = text.strip().strip("\"'").removeprefix("functions.")
    if not _NAME.fullmatch(name):
        raise Malformed
    return name


def attributes(head: str) -> dict[str, str]:
    found = {name: double or single or bare for name, double, single, bare in _ATTRIBUTE.findall(head)}
    return {name: value.replace("&quot;", '"').replace("&amp;", "&") for name, value in found.items()}


def head_name(head: str) -> str:
    """The name in a head: `=name`, or an attribute `name`, `tool` or `key`."""
    if head.lstrip().startswith("="):
        return head.lstrip()[1:].strip().strip("\"'")
    named = attributes(head)
    for attribute in ("name", "tool", "key"):
        if attribute in named:
            return named[attribute]
    raise Malformed


def read_function(calls: Calls, tags: Tags, taken: str = "") -> Reading[None]:
    """Read a call after the beginning of its opening tag: the rest of the tag's head, then the arguments."""
    head, _ = yield from calls.source.before(Markers((tags.function_head_end,)), _HEAD_LIMIT)
    name = tool_name(head_name(taken + head))
    calls.writer.start_call(name)
    yield from calls.source.space()
    if tags.whole and (yield from calls.source.literal(tags.whole[0])):
        yield from calls.source.before(Markers((tags.head_end,)), _HEAD_LIMIT)
        yield from calls.source.space()
    if (yield from calls.source.peek()) == "{":
        yield from read_value(calls.source, calls.writer.arguments)
        yield from calls.source.space()
        yield from calls.source.literal(*tags.whole[1:])
        yield from calls.source.literal(*tags.ends)
        calls.writer.end_call()
    else:
        yield from read_parameters(calls, name, tags)


def read_parameters(calls: Calls, name: str, tags: Tags, first: str | None = None) -> Reading[None]:
    """Read the arguments of a started call, including its end. `first` is the marker that was already taken."""
    source = calls.source
    arguments = ArgumentsWriter(calls.writer.arguments, calls.schema(name), tags.untyped)
    found = first
    while True:
        if found is None:
            yield from source.space()
            found = yield from source.literal(tags.opens, *tags.ends)
        if found is None and (source.truncated or (yield from source.peek())):
            raise Malformed
        if found != tags.opens:
            break
        found = yield from _read_parameter(source, arguments, tags)
    arguments.close()
    calls.writer.end_call()


def _read_parameter(source: Source, arguments: ArgumentsWriter, tags: Tags) -> Reading[str | None]:
    """Read one argument after its `opens`. Returns an end of the whole call if one came instead of `close`."""
    head, _ = yield from source.before(Markers((tags.head_end,)), _HEAD_LIMIT)
    kind: Literal["string", "json"] | None = None
    if tags.value_opens is not None:
        key = head.strip()
        yield from source.space()
        yield from source.expect(tags.value_opens)
    else:
        key, kind = head_name(head), _kind(head)
    arguments.begin(key, kind=kind)
    found = yield from _read_text(source, arguments.put, tags)
    if found is None and source.truncated:
        raise Malformed
    arguments.end()
    return None if found == tags.close or found is None else tags.ends[0]


def _kind(head: str) -> Literal["string", "json"] | None:
    named = attributes(head)
    if named.get("string") == "true" or named.get("type") == "string":
        return "string"
    return "json" if "string" in named or "type" in named else None


def _read_text(source: Source, put: Put, tags: Tags) -> Reading[str | None]:
    """Read the text of a value through its end, which is returned; None at the end of the stream."""
    if tags.cdata and (yield from source.literal(_CDATA)):
        yield from source.until(Markers(("]]>",)), put)
        yield from source.space()
        return (yield from source.literal(tags.close))
    lines = _Lines(put) if tags.lines else put
    return (yield from source.until(Markers((tags.close, *tags.abrupt)), lines))


class _Lines:
    """Drops the line break after a value's opening tag and the one before its end."""

    def __init__(self, put: Put) -> None:
        self._put, self._held, self._begun = put, "", False

    def __call__(self, text: str) -> None:
        if not self._begun:
            text = text.removeprefix("\n")
            self._begun = True
        text = self._held + text
        self._held = "\n" if text.endswith("\n") else ""
        if body := text.removesuffix("\n"):
            self._put(body)

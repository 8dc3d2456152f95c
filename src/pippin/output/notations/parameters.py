"""Reads calls written as tags: the function's name in a head, and one element for each argument."""

import re
from dataclasses import dataclass
from typing import Literal

from pippin.output.notations.arguments import Arguments, Untyped
from pippin.output.notations.json_text import read_value
from pippin.output.stream import Calls, Malformed, Markers, Reading

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
    lines: bool = False  # a value is on lines of its own
    cdata: bool = False
    untyped: Untyped = "json"
    function_head_end: str = ">"
    whole: tuple[str, ...] = ()  # tags around arguments written as one JSON object

    @property
    def begins(self) -> tuple[str, ...]:
        """What calls begin with, as their end tells."""
        tag = self.ends[0].replace("</", "<")
        return (tag,) if self.value_opens else (f"{tag[:-1]}=", f"{tag[:-1]} ")


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


def read_function(calls: Calls, tags: Tags, taken: str = "", *, listed: bool = False) -> Reading[None]:
    """Read a call after the beginning of its opening tag: the rest of the tag's head, then the arguments."""
    head, _ = yield from calls.source.before(Markers((tags.function_head_end,)), _HEAD_LIMIT)
    name = tool_name(head_name(taken + head))
    calls.start(name, listed=listed)
    yield from calls.source.space()
    if tags.whole and (yield from calls.source.literal(tags.whole[0])):
        yield from calls.source.before(Markers((tags.head_end,)), _HEAD_LIMIT)
        yield from calls.source.space()
    if (yield from calls.source.peek()) == "{":
        arguments = yield from read_value(calls.source)
        yield from calls.source.space()
        yield from calls.source.literal(*tags.whole[1:])
        yield from calls.source.literal(*tags.ends)
        calls.end(arguments)
    else:
        yield from read_parameters(calls, name, tags)


def read_parameters(
    calls: Calls, name: str, tags: Tags, first: str | None = None, head: str | None = None
) -> Reading[None]:
    """Read the arguments of a started call, including its end. `first` is the marker that was already taken, and `head`
    what comes after it."""
    source = calls.source
    if first is None:
        yield from source.space()
        first = yield from source.literal(tags.opens, *tags.ends)
    if first is None:  # a head alone is no call: prose mentions it
        raise Malformed
    parameters = _Parameters(calls, name, tags)
    if first == tags.opens:
        yield from parameters.read(head)
    calls.end(parameters.arguments.json)


class _Parameters:
    """Reads the arguments of one call, each in an element of its own, through the end of the call.

    A value may contain the format's own tags. An end of an element counts only if the next element, an end of the call
    or the end of the text follows it. The beginning of an element inside a value belongs to the value, unless it names
    a property of the tool that has no value yet: then the end before it was left out. The end of a call inside a value
    belongs to the value if the end of the outer one follows, else the end of the value was left out.
    """

    def __init__(self, calls: Calls, name: str, tags: Tags) -> None:
        schema = calls.schema(name)
        self._source, self._tags, self._counts = calls.source, tags, calls.counts
        self.arguments = Arguments(schema, tags.untyped)
        self._known = frozenset((schema or {}).get("properties") or ())
        self._given = set[str]()  # keys that have a value
        self._inner = Markers((tags.close, tags.opens, *tags.begins, *tags.ends))
        self._head = Markers((tags.head_end, "\n"))
        begins, ends = ("|".join(map(re.escape, each)) for each in (tags.begins, tags.ends))
        self._bounds = re.compile(rf"({begins})|{re.escape(tags.close)}\s*(?:{ends})")
        self._inside_to = 0  # position of the source before which no end is that of the call

    def read(self, head: str | None) -> Reading[None]:
        """Read from after the first element's `opens`, or after its `head`."""
        if head is None:
            head, _ = yield from self._source.before(Markers((self._tags.head_end,)), _HEAD_LIMIT)
        while head is not None:
            opened = True
            kind: Literal["string", "json"] | None = None
            if self._tags.value_opens is not None:
                key = head.strip()
                yield from self._source.space()
                opened = (yield from self._source.literal(self._tags.value_opens)) is not None
            else:
                key, kind = head_name(head), _kind(head)
            self._given.add(key)
            text, head = yield from self._read_value(opened=opened)
            self.arguments.add(key, text, kind)

    def _read_value(self, *, opened: bool) -> Reading[tuple[str, str | None]]:
        """Read a value through its end. Returns its text, and the head of the next element; None instead at the end of
        the call.

        A value without an opening tag (not `opened`) and without an end is none.
        """
        tags, source = self._tags, self._source
        value, head = _Value(), None
        if tags.cdata and (yield from source.literal(_CDATA)):
            yield from source.until(Markers(("]]>",)), value.pieces.append)
        while True:
            found = yield from source.until(self._inner, value.pieces.append, self._counts)
            closed = ""
            if found in tags.begins:
                value.pieces.append(found)
                value.calls += 1
                continue
            if found == tags.close:
                closed = tags.close + (yield from source.space())
                found = yield from source.literal(tags.opens, *tags.ends)
                if found is None and (yield from source.peek()):
                    value.close(closed)
                    continue
            without_tags = found in (None, *tags.ends) and not (opened or closed)
            if without_tags or (found is None and source.truncated):
                raise Malformed
            if found == tags.opens:
                head = yield from self._read_head(value, closed)
                if head is not None:
                    break
            elif found and not closed and (yield from self._ends_again()):
                value.pieces.append(found)
            elif found and (value.elements or value.calls) and (yield from self._ends_again()):
                value.close(closed + found)
                value.calls = max(value.calls - 1, 0)
            else:
                break
        text = "".join(value.pieces)
        return text.removeprefix("\n").removesuffix("\n") if tags.lines else text, head

    def _ends_again(self) -> Reading[bool]:
        """Whether more calls end in the rest of the text than begin there. What a limit has cut could have done so."""
        source, begun = self._source, 0
        while not source.ended:
            yield
        if source.position < self._inside_to:
            return True
        rest = source.rest
        for bound in self._bounds.finditer(rest):
            begun += 1 if bound[1] else -1
            if begun < 0:
                self._inside_to = source.position + bound.start()
                return True
        self._inside_to = source.position + len(rest) if source.truncated else 0
        return source.truncated

    def _read_head(self, value: "_Value", closed: str) -> Reading[str | None]:
        """Read the head of an element after its `opens`, and `closed`, the end before it. Returns the head of the next
        argument; None if the element belongs to the value."""
        head, end = yield from self._source.head(self._head, _HEAD_LIMIT)
        if end == self._tags.head_end and self._begins_next(head, value, closed):
            return head
        value.pieces.append(f"{closed}{self._tags.opens}{head}{end or ''}")
        value.elements += not closed and end == self._tags.head_end
        return None

    def _begins_next(self, head: str, value: "_Value", closed: str) -> bool:
        try:
            key = head.strip() if self._tags.value_opens is not None else head_name(head)
        except Malformed:
            return False
        if key in self._given:
            return False
        wanted = key in self._known or not self._known
        if closed:
            return wanted or not value.elements
        placed = value.at_line_start or self._tags.value_opens is not None
        return wanted and placed and not value.calls


class _Value:
    """The text of one value so far."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.elements = self.calls = 0  # begun inside the value, and not ended yet

    @property
    def at_line_start(self) -> bool:
        return bool(self.pieces) and self.pieces[-1].endswith("\n")

    def close(self, text: str) -> None:
        """Add the closing tag of an element inside the value."""
        self.pieces.append(text)
        self.elements = max(self.elements - 1, 0)


def _kind(head: str) -> Literal["string", "json"] | None:
    named = attributes(head)
    if named.get("string") == "true" or named.get("type") == "string":
        return "string"
    return "json" if "string" in named or "type" in named else None

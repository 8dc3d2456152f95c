"""Calls of MiniMax M3: an element for each argument, with elements inside."""

from functools import partial
from typing import Any

from msgspec import Struct

from pippin.core.conversation import Tool
from pippin.output.grammars import MAYBE_LINE, Grammar, is_text, string
from pippin.output.notations.arguments import convert
from pippin.output.notations.json_text import quoted
from pippin.output.notations.parameters import head_name, tool_name
from pippin.output.schemas import property_schema, types_of
from pippin.output.stream import SPACE, Calls, Malformed, Markers, Reading, Source, read_run
from pippin.output.tool_format import ToolFormat

TOKEN = "]<]minimax[>["
_TOKEN = Markers((TOKEN,))
_MAX_DEPTH = 32


class _Element(Struct, frozen=True):
    """The schema of an element, and the root in which its references resolve."""

    schema: Any
    root: dict[str, Any]

    def inside(self, tag: str) -> "_Element":
        if "array" in types_of(self.schema, self.root):
            return _Element(self.schema.get("items"), self.root)
        return _Element(property_schema(self.schema, tag), self.root)


def read_value(calls: Calls, tag: str, place: _Element, depth: int) -> Reading[str]:
    """Read an element's content through its closing tag: the text of a scalar, or other elements. Returns its JSON."""
    if depth > _MAX_DEPTH:
        raise Malformed
    source = calls.source
    types = types_of(place.schema, place.root)
    nests, text = not types or bool(types & {"array", "object"}), list[str]()
    while (yield from source.until(_TOKEN, text.append, calls.counts)):
        if (yield from source.literal(f"</{tag}>")):
            break
        if nests:
            if "".join(text).strip(SPACE):
                raise Malformed
            return (yield from _read_children(calls, tag, place, depth, listed="array" in types))
        text.append(TOKEN)
    if source.cut:
        raise Malformed
    return convert("".join(text), types)


def _read_children(calls: Calls, tag: str, place: _Element, depth: int, *, listed: bool) -> Reading[str]:
    source = calls.source
    members: list[str] = []
    while True:
        child = yield from read_tag(source)
        listed = listed or (child == "item" and not members)
        value = yield from read_value(calls, child, place.inside(child), depth + 1)
        members.append(value if listed else f"{quoted(child)}: {value}")
        yield from source.space()
        yield from source.expect(TOKEN)
        if (yield from source.literal(f"</{tag}>")):
            inner = ", ".join(members)
            return f"[{inner}]" if listed else f"{{{inner}}}"


def read_tag(source: Source) -> Reading[str]:
    """Read an opening tag after its token."""
    yield from source.expect("<")
    tag, _ = yield from source.before(Markers((">",)))
    if tag.startswith("/") or not tag.strip():
        raise Malformed
    return tag


class MinimaxM3Calls(ToolFormat, frozen=True, kw_only=True):
    openers: tuple[str, ...] = (f"{TOKEN}<tool_call>",)
    closers: tuple[str, ...] = (f"{TOKEN}</tool_call>",)
    further_markers: tuple[str, ...] = (TOKEN,)

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        yield from read_run(calls.source, f"{TOKEN}<invoke", partial(self._read_call, calls))

    def _read_call(self, calls: Calls) -> Reading[None]:
        source = calls.source
        head, _ = yield from source.before(Markers((">",)))
        name = tool_name(head_name(head))
        calls.start(name, listed=True)
        root, members = calls.schema(name) or {}, list[str]()
        while True:
            yield from source.space()
            if (yield from source.literal(TOKEN)) is None:
                if source.truncated or (yield from source.peek()):
                    raise Malformed
                break
            if (yield from source.literal("</invoke>")):
                break
            tag = yield from read_tag(source)
            value = yield from read_value(calls, tag, _Element(property_schema(root, tag), root), 0)
            members.append(f"{quoted(tag)}: {value}")
        calls.end(f"{{{', '.join(members)}}}")

    def lark(self, grammar: Grammar) -> str:
        token = grammar.mark(TOKEN)

        def element(key: str, schema: Any, root: dict[str, Any]) -> str:
            if is_text(schema, root):
                value = grammar.text_value(schema, root, TOKEN)
            else:
                value = f"{grammar.json_value(schema, root)} {token}"
            return grammar.rule(f"{token} {string(f'<{key}>')} {value} {string(f'</{key}>')}")

        def invoked(tool: Tool) -> str:
            inner = grammar.in_order(grammar.arguments(tool, element))
            head = string(f'<invoke name="{tool.name}">')
            return f"{token} {head} {inner} {token} {string('</invoke>')} {MAYBE_LINE}"

        call = grammar.rule(grammar.calls(invoked))
        opening, closing = grammar.mark("<tool_call>"), grammar.mark("</tool_call>")
        return grammar.source(TOKEN, f"{opening} {MAYBE_LINE} {grammar.several(call)} {token} {closing}")

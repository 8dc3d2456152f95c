"""Calls of Kimi K3: elements whose tags are between special tokens."""

from typing import Any

from pippin.core.conversation import Tool
from pippin.output.grammars import ANY, Grammar, string, with_definitions
from pippin.output.notations.json_text import quoted
from pippin.output.notations.parameters import Tags
from pippin.output.reasoning_formats import FORMATS as REASONING
from pippin.output.schemas import types_of
from pippin.output.tool_parsers.invoke import InvokeCalls

OPEN, CLOSE, SEPARATOR = "<|open|>", "<|close|>", "<|sep|>"
TAGS = Tags(
    opens="<|open|>argument",
    head_end=SEPARATOR,
    close="<|close|>argument<|sep|>",
    ends=("<|close|>call<|sep|>",),
    function_head_end=SEPARATOR,
    whole=("<|open|>json", "<|close|>json<|sep|>"),
)


class KimiK3Calls(InvokeCalls, frozen=True, kw_only=True):
    invoke: str = "<|open|>call"
    tags: Tags = TAGS
    dropped: tuple[str, ...] = REASONING["kimi_k3"].dropped
    further_markers: tuple[str, ...] = (OPEN, CLOSE, SEPARATOR)

    def lark(self, grammar: Grammar) -> str:
        open_, close, separator = (grammar.mark(marker) for marker in (OPEN, CLOSE, SEPARATOR))

        def argument(key: str, schema: Any, root: dict[str, Any]) -> str:
            """An element with an attribute for the type of the value, in the family's words, which have no integer."""
            known = types_of(schema, root) or {"string", "number", "boolean", "null", "array", "object"}
            options = []
            for kind in sorted({"number" if kind == "integer" else kind for kind in known}):
                head = f"{open_} {string(f'argument key={quoted(key)} type={quoted(kind)}')} {separator}"
                if kind == "string":
                    value = grammar.text_value(schema, root, CLOSE)
                else:
                    typed = with_definitions({"allOf": [{"type": kind}, schema]}, root)
                    value = f"{grammar.json(typed)} {close}"
                options.append(grammar.rule(f'{head} {value} "argument" {separator}'))
            return grammar.either(options)

        def called(tool: Tool) -> str:
            head = f'{string(f"call tool={quoted(tool.name)} index=")} /"[1-9][0-9]?"/ {separator}'
            return f"{head} {grammar.in_order(grammar.arguments(tool, argument))}"

        call = grammar.rule(f'{open_} {grammar.calls(called)} {close} "call" {separator}')
        calls = f'{grammar.several(call)} {close} "tools" {separator}'
        block = f'{open_} "tools" {separator} {calls}'
        opened, closed = f'{open_} "response" {separator}', f'{close} "response" {separator}'
        if grammar.required:
            return grammar.lines(f"(({opened})? {closed})? {block}")
        if grammar.is_special(OPEN):
            said = grammar.rule(f"({opened})? {grammar.rule(ANY)}")
            return grammar.lines(f"({said} {closed})? {block} | {said} ({closed})?")
        return grammar.lines(f"({grammar.text_until(self.openers[0])} {calls})? {grammar.text()}")

"""Calls of DeepSeek R1 to V3.1: a name and JSON in a section of its own."""

import json
from functools import partial
from typing import Any

from pippin.output.grammars import Grammar, string
from pippin.output.notations.json_calls import read_arguments_or_none
from pippin.output.notations.parameters import tool_name
from pippin.output.stream import Calls, Markers, Reading
from pippin.output.tool_format import History, ToolFormat

SECTION, SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FENCE = "\n```json\n"


class DeepSeekCalls(ToolFormat, frozen=True, kw_only=True):
    """If `fenced`, the arguments are in a fence after the call's kind and name; else they follow the name alone."""

    fenced: bool
    openers: tuple[str, ...] = (SECTION, BEGIN)
    closers: tuple[str, ...] = (END, SECTION_END)
    further_markers: tuple[str, ...] = (SEPARATOR,)

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        source = calls.source
        if opener == SECTION:
            yield from source.space()
            yield from source.expect(BEGIN)
        text, found = yield from source.before(Markers((SEPARATOR, "\n", END)))
        if found == SEPARATOR and text.strip() == "function" and (yield from source.peek()) != "{":
            text, found = yield from source.before(Markers(("\n", END)))
        calls.start(tool_name(text))
        arguments = ""
        if found != END:
            yield from source.space()
            fence = yield from source.literal("```json", "```")
            arguments = yield from read_arguments_or_none(calls)
            yield from source.space()
            if fence:
                yield from source.literal("```")
        calls.end(arguments)

    def lark(self, grammar: Grammar) -> str:
        separator, end = grammar.mark(SEPARATOR), grammar.mark(END)
        if self.fenced:
            head, tail = f'"function" {separator}', f'"\\n```" {end}'
            named = grammar.named_calls(lambda name: f"{head} {string(name + FENCE)}", tail)
        else:
            named = grammar.named_calls(lambda name: f"{string(name)} {separator}", end)
        call = grammar.rule(f"{grammar.mark(BEGIN)} {named}")
        calls = grammar.several(call, '"\\n"?')
        return grammar.source(SECTION, f"{calls} {grammar.mark(SECTION_END)}")


def write(name: str, arguments: dict[str, Any], *, fenced: bool = False) -> str:
    head, tail = (f"function{SEPARATOR}{name}{FENCE}", "\n```") if fenced else (f"{name}{SEPARATOR}", "")
    return f"{SECTION}{BEGIN}{head}{json.dumps(arguments, ensure_ascii=False)}{tail}{END}{SECTION_END}"


CODED = {
    "deepseek": {"history": History(write=partial(write, fenced=True))},
    "deepseek_v31": {"history": History(write=write)},
}

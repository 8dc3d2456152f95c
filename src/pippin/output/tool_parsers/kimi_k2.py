"""Calls of Kimi K2: a name with a counter, and JSON."""

import re
from dataclasses import dataclass

from pippin.output.grammars import Grammar, string
from pippin.output.notations.json_calls import read_rest_of_call
from pippin.output.notations.parameters import tool_name
from pippin.output.stream import Calls, Markers, Reading
from pippin.output.tool_format import History, ToolFormat

BEGIN, ARGUMENTS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_COUNTER = re.compile(r":[0-9]+$")


@dataclass(frozen=True, kw_only=True)
class KimiK2Calls(ToolFormat):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        source = calls.source
        if opener == SECTION:
            yield from source.space()
            yield from source.expect(BEGIN)
        found: str | None = BEGIN
        while found == BEGIN:
            text, _ = yield from source.before(Markers((ARGUMENTS,)))
            name = tool_name(_COUNTER.sub("", text.strip()))
            calls.start(name, text.strip() if text.strip() != name else None)
            yield from read_rest_of_call(calls, END)
            yield from source.space()
            found = yield from source.literal(BEGIN, SECTION_END)

    def lark(self, grammar: Grammar) -> str:
        named = grammar.named_calls(
            lambda name: f"{string(f'functions.{name}:')} /[0-9]{{1,3}}/ {grammar.mark(ARGUMENTS)}",
            grammar.mark(END),
        )
        call = grammar.rule(f"{grammar.mark(BEGIN)} {named}")
        return grammar.source(SECTION, f"{grammar.several(call)} {grammar.mark(SECTION_END)}")


KIMI_K2 = KimiK2Calls(
    about="Kimi K2: `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{json}<|tool_call_end|>`.",
    name="kimi_k2",
    aliases=("kimi", "moonshot"),
    openers=(SECTION, BEGIN),
    closers=(END, SECTION_END),
    further_markers=(ARGUMENTS,),
    history=History(call_ids="function"),
    signs=((SECTION,),),
    priority=40,
)
FORMATS = (KIMI_K2,)

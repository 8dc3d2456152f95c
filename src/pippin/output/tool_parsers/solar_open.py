"""Calls of Solar Open: an id, a name and JSON."""

from pippin.output.grammars import Grammar, string
from pippin.output.notations.json_calls import read_arguments_or_none
from pippin.output.notations.parameters import tool_name
from pippin.output.reasoning_formats import FORMATS as REASONING
from pippin.output.stream import Calls, Markers, Reading
from pippin.output.tool_format import ToolFormat

SECTION, SECTION_END = "<|tool_calls|>", "<|calls|>"
BEGIN, NAME, ARGUMENTS, END = (
    "<|tool_call:begin|>",
    "<|tool_call:name|>",
    "<|tool_call:args|>",
    "<|tool_call:end|>",
)


class SolarCalls(ToolFormat, frozen=True, kw_only=True):
    openers: tuple[str, ...] = (BEGIN,)
    closers: tuple[str, ...] = (END,)
    apart: tuple[str, ...] = (SECTION,)
    dropped: tuple[str, ...] = (SECTION, SECTION_END, *REASONING["solar_open"].dropped)
    further_markers: tuple[str, ...] = (NAME, ARGUMENTS)

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        source = calls.source
        call_id, _ = yield from source.before(Markers((NAME,)))
        name, _ = yield from source.before(Markers((ARGUMENTS,)))
        calls.start(tool_name(name), call_id.strip() or None)
        calls.end((yield from read_arguments_or_none(calls)))

    def lark(self, grammar: Grammar) -> str:
        named = grammar.named_calls(
            lambda name: f"{string(name)} {grammar.mark(ARGUMENTS)}", grammar.mark(END)
        )
        call = grammar.rule(f"{grammar.mark(BEGIN)} /[A-Za-z0-9]{{9,10}}/ {grammar.mark(NAME)} {named}")
        calls = f"{grammar.mark(SECTION)} {grammar.several(call)} {grammar.mark(SECTION_END)}"
        turn = f'({grammar.mark("<|begin|>")} "assistant")?'  # begun by the prompt, or after the reasoning
        if grammar.required:
            return grammar.lines(f"{turn} {calls}")
        said = f"{grammar.mark('<|content|>')}? {grammar.text()} {grammar.mark('<|end|>')}?"
        return grammar.lines(f"{turn} ({calls} | {said})")

"""Calls of Llama 3: JSON, tagged or alone."""

from dataclasses import dataclass

from pippin.output.grammars import Grammar
from pippin.output.notations.json_calls import read_call
from pippin.output.notations.parameters import read_function
from pippin.output.stream import Calls, Reading
from pippin.output.tool_format import ToolFormat
from pippin.output.tool_parsers.tagged import FUNCTION_TAGS

TAG = "<|python_tag|>"


@dataclass(frozen=True, kw_only=True)
class LlamaCalls(ToolFormat):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        source = calls.source
        if opener == "<function=":
            yield from read_function(calls, FUNCTION_TAGS, taken="=")
            return
        if opener == TAG:
            yield from source.space()
            yield from source.expect("{")
        more: str | None = "{"
        while more:
            yield from read_call(calls, bare=opener != TAG, opened=True)
            yield from source.space()
            if (yield from source.literal(";", ",")) is None:
                return
            yield from source.space()
            more = yield from source.literal("{")

    def lark(self, grammar: Grammar) -> str:
        call = grammar.calls(lambda tool: grammar.json_call(tool, arguments="parameters"))
        return grammar.bare(grammar.several(call, '"; "'))


LLAMA = LlamaCalls(
    about='Llama 3: `{"name": "f", "parameters": {...}}`, tagged or alone; `<function=f>{json}</function>`.',
    name="llama",
    aliases=("llama3", "llama4", "llama3_json", "llama4_json"),
    openers=(TAG, "<function="),
    leading=("{",),
    signs=(("<|python_tag|>",), ('{"name": function name, "parameters"',)),
    priority=10,
)
FORMATS = (LLAMA,)

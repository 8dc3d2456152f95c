"""Llama 3: `{"name": "f", "parameters": {...}}`, tagged or alone; `<function=f>{json}</function>`."""

from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.calls import Calls
from pippin.output.grammars import Grammar, json_call
from pippin.output.notations.json_calls import read_call
from pippin.output.notations.parameters import read_function
from pippin.output.notations.tagged_calls import FUNCTION_TAGS
from pippin.output.stream import Reading
from pippin.output.tool_format import SpecialToken, ToolFormat

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

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special, self.openers, self.leading)
        call = grammar.either([json_call(grammar, tool, arguments="parameters") for tool in tools])
        more = f' ("; " {call})*' if parallel else ""
        return grammar.lines(f"{call}{more}" if required else f"{call}{more} | {grammar.text()}?")


FORMAT = LlamaCalls(
    name="llama",
    aliases=("llama3", "llama4", "llama3_json", "llama4_json"),
    openers=(TAG, "<function="),
    leading=("{",),
    signs=(("<|python_tag|>",), ('{"name": function name, "parameters"',)),
    priority=10,
)

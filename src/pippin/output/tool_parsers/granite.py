"""`<|tool_call|>[{"name": "f", "arguments": {...}}]`: Granite 3."""

from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.grammars import Grammar, json_call
from pippin.output.json_calls import read_calls
from pippin.output.source import Reading
from pippin.output.tool_format import Calls, SpecialToken, ToolFormat


@dataclass(frozen=True, kw_only=True)
class GraniteCalls(ToolFormat):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        yield from read_calls(calls)
        yield from calls.source.space()
        yield from calls.source.literal(*self.closers)

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special)
        call = grammar.either([json_call(grammar, tool) for tool in tools])
        more = f' (", " {call})*' if parallel else ""
        rest = f'"[" {call}{more} "]"'
        return grammar.source(self.openers[0], rest, required=required, repeat=False)


FORMAT = GraniteCalls(
    name="granite",
    aliases=("granite3",),
    openers=("<|tool_call|>", "<tool_call>"),
    closers=("</tool_call>",),
    signs=(("<|tool_call|>",),),
    priority=40,
)

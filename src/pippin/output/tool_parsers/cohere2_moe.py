"""`<|START_ACTION|>[{"tool_name": "f", "parameters": {...}}]<|END_ACTION|>`: Command R7B and A."""

from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.grammars import Grammar, json_call
from pippin.output.json_calls import read_calls
from pippin.output.source import Reading
from pippin.output.tool_format import Calls, SpecialToken, ToolFormat


@dataclass(frozen=True, kw_only=True)
class CohereCalls(ToolFormat):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        yield from read_calls(calls)
        yield from calls.source.space()
        yield from calls.source.literal(*self.closers)

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special)
        call = grammar.either(
            [json_call(grammar, tool, name="tool_name", arguments="parameters") for tool in tools]
        )
        more = f' (", " {call})*' if parallel else ""
        rest = f'"[" {call}{more} "]" {grammar.mark(self.closers[0])}'
        return grammar.source(self.openers[0], rest, required=required, repeat=False)


FORMAT = CohereCalls(
    name="cohere2_moe",
    aliases=("cohere", "cohere_command"),
    openers=("<|START_ACTION|>",),
    closers=("<|END_ACTION|>",),
    signs=(("<|START_ACTION|>",),),
    priority=40,
)

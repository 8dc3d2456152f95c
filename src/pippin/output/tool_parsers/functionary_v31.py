"""`<function=f>{json}</function>`: Functionary 3.1."""

from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.calls import Calls
from pippin.output.grammars import Grammar, named_calls, string
from pippin.output.notations.parameters import read_function
from pippin.output.notations.tagged_calls import FUNCTION_TAGS
from pippin.output.stream import Reading
from pippin.output.tool_format import SpecialToken, ToolFormat


@dataclass(frozen=True, kw_only=True)
class FunctionTags(ToolFormat):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        yield from read_function(calls, FUNCTION_TAGS, taken="=")

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special, self.openers)
        call = named_calls(grammar, tools, lambda name: string(f"{name}>"), grammar.mark(self.closers[0]))
        return grammar.source(self.openers[0], call, required=required, repeat=parallel)


FORMAT = FunctionTags(
    name="functionary_v31",
    openers=("<function=",),
    closers=("</function>",),
    signs=(("<{start_tag}={function_name}>",),),
    priority=40,
)

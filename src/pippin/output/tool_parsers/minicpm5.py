"""`<function name="f"><param name="k">v</param></function>`: MiniCPM 5; CDATA around markup in values."""

from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.calls import Calls
from pippin.output.grammars import Grammar, elements, string
from pippin.output.notations.parameters import Tags, read_function
from pippin.output.stream import Reading
from pippin.output.tool_format import SpecialToken, ToolFormat

TAGS = Tags(opens="<param", close="</param>", ends=("</function>",), cdata=True)


@dataclass(frozen=True, kw_only=True)
class FunctionElements(ToolFormat):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        yield from read_function(calls, TAGS, taken="name=")

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special, self.openers)
        bodies = []
        for tool in tools:
            inner = elements(grammar, tool, lambda key, _: string(f'<param name="{key}">'), TAGS.close)
            bodies.append(
                f"{string(chr(34) + tool.name + chr(34) + '>')} {inner} {grammar.mark(TAGS.ends[0])}"
            )
        return grammar.source(self.openers[0], grammar.either(bodies), required=required, repeat=parallel)


FORMAT = FunctionElements(
    name="minicpm5",
    aliases=("minicpm5xml",),
    openers=("<function name=",),
    closers=("</function>",),
    signs=(("<function name=", "<param name=", "CDATA"),),
    priority=30,
)

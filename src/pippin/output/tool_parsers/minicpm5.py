"""Calls of MiniCPM 5: an element for the function and one for each argument."""

from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.grammars import Grammar, string
from pippin.output.notations.parameters import Tags, read_function
from pippin.output.stream import Calls, Reading
from pippin.output.tool_format import ToolFormat

TAGS = Tags(opens="<param", close="</param>", begins="<function name=", ends=("</function>",), cdata=True)


@dataclass(frozen=True, kw_only=True)
class FunctionElements(ToolFormat):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        yield from read_function(calls, TAGS, taken="name=")

    def lark(self, grammar: Grammar) -> str:
        def called(tool: Tool) -> str:
            arguments = grammar.tagged_call(tool, TAGS, lambda key, _: f' name="{key}"')
            return f"{string(chr(34) + tool.name + chr(34) + '>')} {arguments}"

        return grammar.source(self.openers[0], grammar.calls(called), repeat=True)


FORMATS = (
    FunctionElements(
        about='`<function name="f"><param name="k">v</param></function>`: MiniCPM 5; CDATA around markup in values.',
        name="minicpm5",
        aliases=("minicpm5xml",),
        openers=("<function name=",),
        closers=("</function>",),
        signs=(("<function name=", "<param name=", "CDATA"),),
        priority=30,
    ),
)

"""Calls of Muse Spark: those of `atem`, in messages that a header routes (`to=NAME<|message|>`)."""

from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.grammars import Grammar, string
from pippin.output.notations.invoke_calls import InvokeCalls
from pippin.output.notations.parameters import Tags
from pippin.output.reasoning_formats import MUSE, next_message_of_muse, thoughts_of_muse
from pippin.output.tool_format import SpecialToken


@dataclass(frozen=True, kw_only=True)
class MuseCalls(InvokeCalls):
    """Each call is a message addressed to its tool."""

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special, self.openers)
        message, begin = grammar.mark("<|message|>"), next_message_of_muse(grammar)
        opener, closer = grammar.mark(self.openers[0]), grammar.mark(self.closers[0])
        call = grammar.either(
            [
                f'{string(f" to={tool.name}")} {message} {opener} "\\n" {self.invocation(grammar, tool)} {closer}'
                for tool in tools
            ]
        )
        calls = call + (f" ({begin} {call})*" if parallel else "")
        if required:
            return grammar.lines(f"{thoughts_of_muse(grammar)} {calls}")
        said = f'" to=user" {message} {grammar.text()}'
        return grammar.lines(f"{thoughts_of_muse(grammar)} (({said} {begin})? {calls} | {said})")


FORMAT = MuseCalls(
    name="muse_spark",
    openers=("<atem:function_calls>",),
    closers=("</atem:function_calls>",),
    invoke="<atem:invoke",
    tags=Tags(opens="<atem:parameter", close="</atem:parameter>", ends=("</atem:invoke>",)),
    channels=MUSE,
    signs=(("<atem:function_calls>", "to=self<|message|>"), ("<atem:function_calls>", "<|eom|>")),
    priority=35,
)

"""Calls as `<invoke name="f"><parameter name="k">v</parameter></invoke>`, under any prefix, in a block or alone."""

from functools import partial

from pippin.core.conversation import Tool
from pippin.output.channels import Channels
from pippin.output.grammars import Grammar, string
from pippin.output.notations.parameters import Tags, read_function
from pippin.output.reasoning_formats import MUSE, next_message_of_muse, thoughts_of_muse
from pippin.output.stream import Calls, Reading, read_run
from pippin.output.tool_format import ToolFormat


class InvokeCalls(ToolFormat, frozen=True, kw_only=True):
    """`invoke` begins a call inside one of `openers`; if `typed`, parameters state whether they are strings."""

    invoke: str
    tags: Tags
    typed: bool = False

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        yield from read_run(calls.source, self.invoke, partial(read_function, calls, self.tags, listed=True))

    def lark(self, grammar: Grammar) -> str:
        call = grammar.calls(lambda tool: self.invocation(grammar, tool))
        rest = f'"\\n" {grammar.several(call)} {grammar.mark(self.closers[0])}'
        return grammar.source(self.openers[0], rest)

    def invocation(self, grammar: Grammar, tool: Tool) -> str:
        """One call, without the block around it."""

        def head(key: str, plain: bool) -> str:
            return f' name="{key}"' + (f' string="{str(plain).lower()}"' if self.typed else "")

        begin = string(f'{self.invoke} name="{tool.name}">')
        return f'{begin} {grammar.tagged_call(tool, self.tags, head)} "\\n"'


class MuseCalls(InvokeCalls, frozen=True, kw_only=True):
    """Each call is a message addressed to its tool."""

    channels: Channels | None = MUSE

    def lark(self, grammar: Grammar) -> str:
        message, begin = grammar.mark("<|message|>"), next_message_of_muse(grammar)
        opener, closer = grammar.mark(self.openers[0]), grammar.mark(self.closers[0])

        def addressed(tool: Tool) -> str:
            to = string(f" to={tool.name}")
            return f'{to} {message} {opener} "\\n" {self.invocation(grammar, tool)} {closer}'

        calls = grammar.several(grammar.calls(addressed), begin)
        if grammar.required:
            return grammar.lines(f"{thoughts_of_muse(grammar)} {calls}")
        said = f'" to=user" {message} {grammar.text()}'
        return grammar.lines(f"{thoughts_of_muse(grammar)} (({said} {begin})? {calls} | {said})")


ELEMENT_TAGS = Tags(opens="<param", close="</param>", ends=("</function>",), cdata=True)


class FunctionElements(ToolFormat, frozen=True, kw_only=True):
    """An element for the function, without a block around it, and one for each argument: MiniCPM 5."""

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        yield from read_function(calls, ELEMENT_TAGS, taken="name=")

    def lark(self, grammar: Grammar) -> str:
        def called(tool: Tool) -> str:
            arguments = grammar.tagged_call(tool, ELEMENT_TAGS, lambda key, _: f' name="{key}"')
            return f"{string(chr(34) + tool.name + chr(34) + '>')} {arguments}"

        return grammar.source(self.openers[0], grammar.calls(called), repeat=True)

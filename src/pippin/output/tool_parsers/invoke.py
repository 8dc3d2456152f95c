"""Calls as `<invoke name="f"><parameter name="k">v</parameter></invoke>`, under any prefix, in a block or alone."""

from functools import partial

from msgspec.structs import replace

from pippin.core.conversation import Tool
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


class FunctionElements(ToolFormat, frozen=True, kw_only=True):
    """An element for the function, without a block around it, and one for each argument: MiniCPM 5."""

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        yield from read_function(calls, ELEMENT_TAGS, taken="name=")

    def lark(self, grammar: Grammar) -> str:
        def called(tool: Tool) -> str:
            arguments = grammar.tagged_call(tool, ELEMENT_TAGS, lambda key, _: f' name="{key}"')
            return f"{string(chr(34) + tool.name + chr(34) + '>')} {arguments}"

        return grammar.source(self.openers[0], grammar.calls(called), repeat=True)


ATEM_TAGS = Tags(opens="<atem:parameter", close="</atem:parameter>", ends=("</atem:invoke>",))
ELEMENT_TAGS = Tags(opens="<param", close="</param>", ends=("</function>",), cdata=True)
DEEPSEEK_V4 = InvokeCalls(
    about='`<｜DSML｜invoke name="f"><｜DSML｜parameter name="k" string="true">v...` in a block: DeepSeek 4.',
    name="deepseek_v4",
    aliases=("dsml",),
    openers=("<｜DSML｜tool_calls>", "<｜DSML｜function_calls>"),
    closers=("</｜DSML｜tool_calls>", "</｜DSML｜function_calls>"),
    invoke="<｜DSML｜invoke",
    tags=Tags(opens="<｜DSML｜parameter", close="</｜DSML｜parameter>", ends=("</｜DSML｜invoke>",)),
    typed=True,
    signs=(("｜DSML｜",),),
    priority=50,
)
MINIMAX_M2 = InvokeCalls(
    about='`<minimax:tool_call><invoke name="f"><parameter name="k">v</parameter></invoke></minimax:tool_call>`.',
    name="minimax_m2",
    aliases=("minimax",),
    openers=("<minimax:tool_call>",),
    closers=("</minimax:tool_call>",),
    invoke="<invoke",
    tags=Tags(opens="<parameter", close="</parameter>", ends=("</invoke>", "</minimax:tool_call>")),
)
FORMATS = (
    DEEPSEEK_V4,
    replace(
        DEEPSEEK_V4,
        about="`<｜DSML｜function_calls>` around the calls of DeepSeek 4: DeepSeek 3.2.",
        name="deepseek_v32",
        aliases=(),
        openers=DEEPSEEK_V4.openers[::-1],
        closers=DEEPSEEK_V4.closers[::-1],
        signs=(("｜DSML｜", "function_calls"),),
        priority=51,
    ),
    MINIMAX_M2,
    InvokeCalls(
        about='`<atem:function_calls><atem:invoke name="f"><atem:parameter name="k">v...`: the calls of Muse.',
        name="atem",
        openers=("<atem:function_calls>",),
        closers=("</atem:function_calls>",),
        invoke="<atem:invoke",
        tags=ATEM_TAGS,
        priority=30,
    ),
    MuseCalls(
        about="Calls of Muse Spark: those of `atem`, in messages that a header routes (`to=NAME<|message|>`).",
        name="muse_spark",
        openers=("<atem:function_calls>",),
        closers=("</atem:function_calls>",),
        invoke="<atem:invoke",
        tags=ATEM_TAGS,
        channels=MUSE,
        signs=(("<atem:function_calls>", "to=self<|message|>"), ("<atem:function_calls>", "<|eom|>")),
        priority=35,
    ),
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

"""Functionary's formats, in which headers or tags name the function and JSON follows."""

from dataclasses import dataclass

from pippin.output.channels import Channels, Route
from pippin.output.grammars import Grammar, string
from pippin.output.notations.json_calls import read_array
from pippin.output.notations.parameters import read_function
from pippin.output.stream import Calls, Reading
from pippin.output.tool_format import HeaderCalls, History, ToolFormat
from pippin.output.tool_parsers.tagged import FUNCTION_TAGS


def route_of_recipient(header: str) -> Route:
    recipient = header.split()[-1] if header.split() else "all"
    return Route("text") if recipient in ("all", "user", "assistant") else Route("call", recipient)


def route_of_line(header: str) -> Route:
    return Route("text") if header.strip() == "all" else Route("call", header.strip())


RECIPIENTS = Channels(
    openers=("<|from|>", "<|recipient|>"),
    header_ends=("<|content|>",),
    ends=("<|stop|>",),
    route=route_of_recipient,
    begins=("all\n",),
    recipients=True,
)
OPENER = ">>>"
LINES = Channels(
    openers=(OPENER,),
    header_ends=("\n",),
    ends=(),
    route=route_of_line,
    begins=("all\n",),
    recipients=True,
    known=True,
)


@dataclass(frozen=True, kw_only=True)
class FunctionTags(ToolFormat):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        yield from read_function(calls, FUNCTION_TAGS, taken="=")

    def lark(self, grammar: Grammar) -> str:
        call = grammar.named_calls(lambda name: string(f"{name}>"), grammar.mark(self.closers[0]))
        return grammar.source(self.openers[0], call, repeat=True)


@dataclass(frozen=True, kw_only=True)
class FunctionaryCalls(FunctionTags):
    """The prompt begins the first header: it ends in `<|recipient|>`. An array of objects alone is a slip."""

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        yield from (read_array(calls, bare=True) if opener == "[" else super().read(calls, opener))

    def lark(self, grammar: Grammar) -> str:
        content = grammar.mark("<|content|>")
        head = f'"assistant\\n" {grammar.mark("<|recipient|>")}'
        call = grammar.named_calls(lambda name: f"{string(name + chr(10))} {content}")
        calls = grammar.several(call, f'"\\n" {grammar.mark("<|from|>")} {head}')
        if grammar.required:
            return grammar.lines(calls)
        said = f"{grammar.text_until('<|from|>')} {head} {calls}"
        return grammar.lines(f'{calls} | "all\\n" {content} ({said} | {grammar.text()})')


@dataclass(frozen=True, kw_only=True)
class FunctionaryLines(HeaderCalls):
    """The prompt ends with the first opener."""

    def lark(self, grammar: Grammar) -> str:
        call = grammar.named_calls(lambda name: string(f"{name}\n"))
        calls = grammar.several(call, string(OPENER))
        if grammar.required:
            return grammar.lines(calls)
        return grammar.lines(f'{calls} | "all\\n" ({grammar.text_until(OPENER)} {calls} | {grammar.text()})')


FORMATS = (
    FunctionaryCalls(
        about="Functionary 2: `<|recipient|>f` and `<|content|>{json}` in lines; `<function=f>{json}</function>`; an "
        "array of objects alone.",
        name="functionary",
        aliases=("meetkai",),
        openers=("<function=",),
        leading=("[",),
        channels=RECIPIENTS,
        apart=RECIPIENTS.openers,
        history=History(arguments="json"),
        signs=(("<|recipient|>",), ("<|from|>",)),
        priority=40,
    ),
    FunctionTags(
        about="`<function=f>{json}</function>`: Functionary 3.1.",
        name="functionary_v31",
        openers=("<function=",),
        closers=("</function>",),
        signs=(("<{start_tag}={function_name}>",),),
        priority=40,
    ),
    FunctionaryLines(
        about="Functionary 3.2: `>>>f` and `{json}` in lines, or `>>>all` and text; the prompt ends with the first "
        "`>>>`.",
        name="functionary_v32",
        channels=LINES,
        apart=(OPENER,),
        history=History(arguments="json"),
        signs=(("'>>>all\\n'",),),
        priority=40,
    ),
)

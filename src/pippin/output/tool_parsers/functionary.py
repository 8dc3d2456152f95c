"""Functionary 2: `<|recipient|>f` and `<|content|>{json}` in lines; `<function=f>{json}</function>`.

The prompt begins the first header: it ends in `<|recipient|>`.
"""

from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.calls import Calls
from pippin.output.channels import Channels, Route
from pippin.output.grammars import Grammar, named_calls, string
from pippin.output.notations.parameters import read_function
from pippin.output.notations.tagged_calls import FUNCTION_TAGS
from pippin.output.stream import Reading
from pippin.output.tool_format import History, SpecialToken, ToolFormat


def route(header: str) -> Route:
    recipient = header.split()[-1] if header.split() else "all"
    return Route("text") if recipient in ("all", "user", "assistant") else Route("call", recipient)


CHANNELS = Channels(
    openers=("<|from|>", "<|recipient|>"),
    header_ends=("<|content|>",),
    ends=("<|stop|>",),
    route=route,
    begins=("all\n",),
    recipients=True,
)


@dataclass(frozen=True, kw_only=True)
class FunctionaryCalls(ToolFormat):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        yield from read_function(calls, FUNCTION_TAGS, taken="=")

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special, (*self.openers, *CHANNELS.openers))
        content = grammar.mark("<|content|>")
        head = f'"assistant\\n" {grammar.mark("<|recipient|>")}'
        call = named_calls(grammar, tools, lambda name: f"{string(name + chr(10))} {content}")
        calls = call + (f' ("\\n" {grammar.mark("<|from|>")} {head} {call})*' if parallel else "")
        if required:
            return grammar.lines(calls)
        said = f"{grammar.text_until('<|from|>')} {head} {calls}"
        return grammar.lines(f'{calls} | "all\\n" {content} ({said} | {grammar.text()})')


FORMAT = FunctionaryCalls(
    name="functionary",
    aliases=("meetkai",),
    openers=("<function=",),
    channels=CHANNELS,
    history=History(arguments="json"),
    signs=(("<|recipient|>",), ("<|from|>",)),
    priority=40,
)

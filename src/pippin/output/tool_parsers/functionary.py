"""Functionary: `<|recipient|>f` and `<|content|>{json}` in lines; `<function=f>{json}</function>`."""

from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.channels import Channels, Route
from pippin.output.grammars import Grammar, parameters_of, string
from pippin.output.parameters import read_function
from pippin.output.source import Reading
from pippin.output.tagged_calls import FUNCTION_TAGS
from pippin.output.tool_format import Calls, History, SpecialToken, ToolFormat


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
        grammar = Grammar(special)
        content = grammar.mark("<|content|>")
        options = [
            f"{string(tool.name + chr(10))} {content} {grammar.json(parameters_of(tool))}" for tool in tools
        ]
        head = f'{grammar.mark("<|from|>")} "assistant\\n" {grammar.mark("<|recipient|>")}'
        call = grammar.rule(f"{head} {grammar.either(options)}")
        block = f'{call} ("\\n" {call})*' if parallel else call
        return grammar.lines(block if required else f"({block})? {grammar.rule('/(?s:.*)/')}")


FORMAT = FunctionaryCalls(
    name="functionary",
    aliases=("meetkai",),
    openers=("<function=",),
    channels=CHANNELS,
    history=History(arguments="json"),
    signs=(("<|recipient|>",), ("<|from|>",)),
    priority=40,
)

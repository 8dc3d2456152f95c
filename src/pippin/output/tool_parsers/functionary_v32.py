"""Functionary 3.2: `>>>f` and `{json}` in lines, or `>>>all` and text; the prompt ends with the first `>>>`."""

from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.channels import Channels, Route
from pippin.output.grammars import Grammar, named_calls, string
from pippin.output.tool_format import HeaderCalls, History, SpecialToken

OPENER = ">>>"


def route(header: str) -> Route:
    return Route("text") if header.strip() == "all" else Route("call", header.strip())


CHANNELS = Channels(
    openers=(OPENER,),
    header_ends=("\n",),
    ends=(),
    route=route,
    begins=("all\n",),
    recipients=True,
    known=True,
)


@dataclass(frozen=True, kw_only=True)
class FunctionaryLines(HeaderCalls):
    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special, (OPENER,))
        call = named_calls(grammar, tools, lambda name: string(f"{name}\n"))
        calls = call + (f" ({string(OPENER)} {call})*" if parallel else "")
        if required:
            return grammar.lines(calls)
        return grammar.lines(f'{calls} | "all\\n" ({grammar.text_until(OPENER)} {calls} | {grammar.text()})')


FORMAT = FunctionaryLines(
    name="functionary_v32",
    channels=CHANNELS,
    history=History(arguments="json"),
    signs=(("'>>>all\\n'",),),
    priority=40,
)

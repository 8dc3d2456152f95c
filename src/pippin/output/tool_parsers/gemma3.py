"""A `tool_code` fence with `f(a=b)`, or `f b`: Gemma 3, whose template knows no calls."""

import re
from dataclasses import dataclass
from typing import Any

from pippin.core.conversation import Tool
from pippin.output.calls import Calls
from pippin.output.grammars import MAYBE_LINE, Grammar, python_arguments, string
from pippin.output.notations.literals import Notation
from pippin.output.notations.python_calls import read_python_call, write_python_call
from pippin.output.stream import Reading
from pippin.output.tool_format import History, SpecialToken, ToolFormat

FENCE, FENCE_END = "```tool_code", "```"
_LOOSE = Notation(bare_end=re.compile(r"[,)\]}\n]"))


def read_fence(calls: Calls) -> Reading[None]:
    """Read calls, one per line, through the end of the fence."""
    source = calls.source
    yield from source.space()
    while True:
        printed = yield from source.literal("print(")
        yield from source.space()
        yield from read_python_call(calls, _LOOSE, shell=True)
        yield from source.space()
        if printed:
            yield from source.literal(")")
            yield from source.space()
        if (yield from source.literal(FENCE_END)) or not (yield from source.peek()):
            return


@dataclass(frozen=True, kw_only=True)
class ToolCode(ToolFormat):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        yield from read_fence(calls)

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special, self.openers)
        options = [f'{string(tool.name + "(")} {python_arguments(grammar, tool)} ")\\n"' for tool in tools]
        call = grammar.either(options)
        rest = f'"\\n" {call}{"+" if parallel else ""} {string(FENCE_END)}'
        return grammar.source(FENCE, rest, required=required, repeat=parallel, separator=MAYBE_LINE)


def write(name: str, arguments: dict[str, Any]) -> str:
    return f"{FENCE}\n{write_python_call(name, arguments)}\n{FENCE_END}"


FORMAT = ToolCode(
    name="gemma3",
    aliases=("tool_code", "gemma"),
    openers=(FENCE,),
    history=History(write=write),
    signs=(("```tool_code",),),
    architectures=frozenset({"gemma3", "gemma3_text", "gemma3n", "gemma3n_text"}),
    priority=5,
)

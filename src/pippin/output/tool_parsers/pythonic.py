"""`<|tool_call_start|>[f(a="b")]<|tool_call_end|>` (LFM2), or the list alone (Llama 3.2 and 4, OLMo)."""

from dataclasses import dataclass
from typing import Any

from pippin.core.conversation import Tool
from pippin.output.calls import Calls
from pippin.output.grammars import Grammar, python_arguments, string
from pippin.output.notations.literals import PYTHON
from pippin.output.notations.python_calls import read_python_call, write_python_call
from pippin.output.stream import Reading
from pippin.output.tool_format import History, SpecialToken, ToolFormat

START, END = "<|tool_call_start|>", "<|tool_call_end|>"
LLAMA_START, LLAMA_END = "<|python_start|>", "<|python_end|>"


@dataclass(frozen=True, kw_only=True)
class PythonicCalls(ToolFormat):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        source = calls.source
        if opener != "[":
            yield from source.space()
            yield from source.literal("[")
        yield from source.space()
        found: str | None = ","
        while found == ",":
            yield from read_python_call(calls, PYTHON, listed=True)
            yield from source.space()
            found = yield from source.literal(",", "]")
            yield from source.space()
        yield from source.literal(*self.closers)

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special, self.openers, self.leading)
        options = [f'{string(tool.name + "(")} {python_arguments(grammar, tool)} ")"' for tool in tools]
        call = grammar.either(options)
        whole = call + (f' (", " {call})*' if parallel else "")
        if self.leading:
            bare = f'"[" {whole} "]"'
            return grammar.lines(bare if required else f"{bare} | {grammar.text()}?")
        rest = f'"[" {whole} "]" {grammar.mark(END)}'
        return grammar.source(START, rest, required=required, repeat=False)


def write(name: str, arguments: dict[str, Any]) -> str:
    return f"{START}[{write_python_call(name, arguments)}]{END}"


FORMAT = PythonicCalls(
    name="pythonic",
    aliases=("lfm2",),
    openers=(START,),
    closers=(END,),
    history=History(write=write),
    signs=((START,), ("<|tool_list_start|>",)),
    priority=40,
)

"""Lists of calls in Python's notation, between markers or alone."""

from pippin.output.grammars import Grammar
from pippin.output.notations.literals import PYTHON
from pippin.output.notations.python_calls import read_python_call, write_python_call
from pippin.output.stream import Calls, Reading
from pippin.output.tool_format import History, ToolFormat

START, END = "<|tool_call_start|>", "<|tool_call_end|>"


class PythonicCalls(ToolFormat, frozen=True, kw_only=True):
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
            found = yield from source.literal(",", "]", ",]")
            yield from source.space()

    def lark(self, grammar: Grammar) -> str:
        call = grammar.calls(lambda tool: grammar.python_call(tool, '")"'))
        calls = '"[" ' + grammar.several(call, '", "') + ' "]"'
        return grammar.bare(calls) if self.leading else grammar.source(START, f"{calls} {grammar.mark(END)}")


CODED = {
    "pythonic": {"history": History(write=lambda *call: f"{START}[{write_python_call(*call)}]{END}")},
}

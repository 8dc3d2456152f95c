"""Calls of the Gemma models: `call:f{k:<|"|>v<|"|>}`, with strings between fences, or Python's calls in a fence."""

import re
from functools import partial
from typing import Any

from pippin.core.conversation import Tool
from pippin.output.grammars import MAYBE_LINE, Grammar, is_text, string, with_definitions
from pippin.output.notations.arguments import Arguments
from pippin.output.notations.literals import PYTHON, Notation, read_key, read_literal, read_string_rest
from pippin.output.notations.parameters import tool_name
from pippin.output.notations.python_calls import read_python_arguments, read_python_call, write_python_call
from pippin.output.stream import Calls, Malformed, Reading, read_run
from pippin.output.tool_format import History, ToolFormat

_NAME_END = re.compile(r"[{(\s]")
_BARE_END = re.compile(r"[,}\]]")
_LOOSE = Notation(bare_end=re.compile(r"[,)\]}\n]"))
FENCE, FENCE_END = "```tool_code", "```"


class GemmaCalls(ToolFormat, frozen=True, kw_only=True):
    """`fence` encloses a string on both sides."""

    fence: str

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        if opener == FENCE:
            yield from read_fence(calls)
        else:
            yield from read_run(calls.source, "call:", partial(self._read_call, calls))

    def _read_call(self, calls: Calls) -> Reading[None]:
        source = calls.source
        name = tool_name((yield from source.word(_NAME_END)))
        yield from source.space()
        bracket = yield from source.expect("(", "{")
        calls.start(name, listed=True)
        if bracket == "(":
            calls.end((yield from read_python_arguments(calls, name, PYTHON)))
        else:
            calls.end((yield from self._read_arguments(calls, name)))

    def _read_arguments(self, calls: Calls, name: str) -> Reading[str]:
        """Read from after the opening brace through the closing one, or to the end marker. A fenced value is converted
        if the tool's schema says that it is not a string."""
        source = calls.source
        notation = Notation(('"', "'"), (self.fence,), _BARE_END, calls.counts)
        arguments = Arguments(calls.schema(name), "string")
        yield from source.space()
        while (yield from source.literal("}")) is None and (yield from source.peek()) != "<":
            key = yield from read_key(source, notation)
            yield from source.space()
            if (yield from source.literal(self.fence)):
                arguments.add(key, (yield from read_string_rest(source, notation, self.fence)))
            else:
                arguments.put(key, (yield from read_literal(source, notation)))
            yield from source.space()
            if (yield from source.literal(",")) is None and (yield from source.peek()) not in ("}", "<"):
                raise Malformed
            yield from source.space()
        return arguments.json

    def lark(self, grammar: Grammar) -> str:
        def argument(key: str, schema: Any, root: dict[str, Any]) -> str:
            if is_text(schema, root):
                value = f"{grammar.mark(self.fence)} {grammar.text_value(schema, root, self.fence)}"
            else:
                value = grammar.json(with_definitions(schema, root))
            return grammar.rule(f"{string(key + ':')} {value}")

        def called(tool: Tool) -> str:
            arguments = grammar.sequence(grammar.arguments(tool, argument), ",")
            return f'{string(f"call:{tool.name}{{")} {arguments} "}}" {grammar.mark(self.closers[0])}'

        return grammar.source(self.openers[0], grammar.calls(called), repeat=True)


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


class ToolCode(ToolFormat, frozen=True, kw_only=True):
    history: History = History(write=lambda *call: f"{FENCE}\n{write_python_call(*call)}\n{FENCE_END}")

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        yield from read_fence(calls)

    def lark(self, grammar: Grammar) -> str:
        call = grammar.calls(lambda tool: grammar.python_call(tool, '")\\n"'))
        rest = f'"\\n" {grammar.several(call)} {string(FENCE_END)}'
        return grammar.source(FENCE, rest, repeat=True, separator=MAYBE_LINE)

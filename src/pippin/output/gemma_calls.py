"""Calls in Gemma's own notation: `call:f{k:<|"|>v<|"|>}`, strings between fences of one token."""

import re
from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.grammars import (
    Grammar,
    is_text,
    parameters_of,
    sequence,
    string,
    text_value,
    with_definitions,
)
from pippin.output.literals import PYTHON, Notation, read_literal
from pippin.output.parameters import tool_name
from pippin.output.python_calls import read_python_arguments
from pippin.output.source import Reading
from pippin.output.tool_format import Calls, SpecialToken, ToolFormat

_NAME_END = re.compile(r"[{(\s]")
_BARE_END = re.compile(r"[,}\]]")


@dataclass(frozen=True, kw_only=True)
class GemmaCalls(ToolFormat):
    """`fence` stands on both sides of a string."""

    fence: str

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        source = calls.source
        notation = Notation(quotes=('"',), fences=(self.fence,), bare_end=_BARE_END)
        yield from source.space()
        found: str | None = yield from source.expect("call:")
        while found == "call:":
            name = tool_name((yield from source.word(_NAME_END)))
            yield from source.space()
            bracket = yield from source.expect("(", "{")
            calls.writer.start_call(name)
            if bracket == "(":
                yield from read_python_arguments(calls, name, PYTHON)
            else:
                yield from read_literal(source, calls.writer.arguments, notation, taken="{")
            calls.writer.end_call()
            yield from source.space()
            found = yield from source.literal("call:", *self.closers)

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special)
        options = []
        for tool in tools:
            schema = parameters_of(tool)
            required_keys = schema.get("required") or ()
            parts = [
                (self._argument(grammar, key, inner, schema), key in required_keys)
                for key, inner in (schema.get("properties") or {}).items()
            ]
            head = string(f"call:{tool.name}{{")
            options.append(f'{head} {sequence(grammar, parts, ",")} "}}" {grammar.mark(self.closers[0])}')
        return grammar.source(self.openers[0], grammar.either(options), required=required, repeat=parallel)

    def _argument(self, grammar: Grammar, key: str, schema: object, root: dict[str, object]) -> str:
        if is_text(schema, root):
            value = f"{grammar.mark(self.fence)} {text_value(grammar, schema, self.fence)}"
        else:
            value = grammar.json(with_definitions(schema, root))
        return grammar.rule(f"{string(key + ':')} {value}")

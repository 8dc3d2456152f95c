"""Calls in Gemma's notation: `call:f{k:<|"|>v<|"|>}`. Strings are between fences, which are single tokens."""

import re
from dataclasses import dataclass
from typing import Any

from pippin.core.conversation import Tool
from pippin.output.calls import Calls
from pippin.output.grammars import (
    Grammar,
    is_text,
    separate_arguments,
    sequence,
    string,
    text_value,
    with_definitions,
)
from pippin.output.notations.arguments import ArgumentsWriter
from pippin.output.notations.literals import PYTHON, Notation, read_key, read_literal, read_string_rest
from pippin.output.notations.parameters import tool_name
from pippin.output.notations.python_calls import read_python_arguments
from pippin.output.stream import Malformed, Reading
from pippin.output.tool_format import SpecialToken, ToolFormat

_NAME_END = re.compile(r"[{(\s]")
_BARE_END = re.compile(r"[,}\]]")


@dataclass(frozen=True, kw_only=True)
class GemmaCalls(ToolFormat):
    """`fence` encloses a string on both sides."""

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
            calls.start(name, listed=True)
            if bracket == "(":
                yield from read_python_arguments(calls, name, PYTHON)
            else:
                yield from self._read_arguments(calls, name, notation)
            calls.end()
            yield from source.space()
            found = yield from source.literal("call:", *self.closers)

    def _read_arguments(self, calls: Calls, name: str, notation: Notation) -> Reading[None]:
        """Read from after the opening brace through the closing one. A fenced value is converted if the tool's schema
        says that it is not a string."""
        source = calls.source
        arguments = ArgumentsWriter(calls.arguments, calls.schema(name), "string")
        yield from source.space()
        while (yield from source.literal("}")) is None:
            key = yield from read_key(source, notation)
            yield from source.space()
            if (yield from source.literal(self.fence)):
                arguments.begin(key)
                yield from read_string_rest(source, arguments.put, notation, self.fence)
                arguments.end()
            else:
                arguments.member(key)
                yield from read_literal(source, arguments.raw, notation)
            yield from source.space()
            if (yield from source.literal(",")) is None and (yield from source.peek()) != "}":
                raise Malformed
            yield from source.space()
        arguments.close()

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special, self.openers)
        options = []
        for tool in tools:
            schema = separate_arguments(tool)
            required_keys = schema.get("required") or ()
            parts = [
                (self._argument(grammar, key, inner, schema), key in required_keys)
                for key, inner in (schema.get("properties") or {}).items()
            ]
            head = string(f"call:{tool.name}{{")
            options.append(f'{head} {sequence(grammar, parts, ",")} "}}" {grammar.mark(self.closers[0])}')
        return grammar.source(self.openers[0], grammar.either(options), required=required, repeat=parallel)

    def _argument(self, grammar: Grammar, key: str, schema: Any, root: dict[str, Any]) -> str:
        if is_text(schema, root):
            value = f"{grammar.mark(self.fence)} {text_value(grammar, schema, root, self.fence)}"
        else:
            value = grammar.json(with_definitions(schema, root))
        return grammar.rule(f"{string(key + ':')} {value}")

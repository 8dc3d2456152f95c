"""Calls as JSON between two markers: an array of objects, or objects one after the other."""

import json
from dataclasses import dataclass
from typing import Any

from pippin.core.conversation import Tool
from pippin.output.calls import Calls
from pippin.output.grammars import Grammar, json_calls, string
from pippin.output.notations.arguments import quoted
from pippin.output.notations.json_calls import read_call, read_calls
from pippin.output.stream import Reading
from pippin.output.tool_format import SpecialToken, ToolFormat, Write


def writes_array(begin: str, end: str = "") -> Write:
    """Writes a call as an array between two markers."""

    def write(name: str, arguments: dict[str, Any]) -> str:
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        return f"{begin}[{call}]{end}"

    return write


@dataclass(frozen=True, kw_only=True)
class JsonEnvelope(ToolFormat):
    """The keys, and the text around and between calls, are those of the family's template."""

    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str | None = None  # key of a number that may precede the name
    begin: str = "["
    between: str = ", "
    end: str = "]"
    closed: bool = True  # the first of `closers` follows

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        source = calls.source
        yield from read_calls(calls)
        yield from source.space()
        while (yield from source.literal(*self.closers)) is None and (yield from source.peek()) == "{":
            yield from read_call(calls)
            yield from source.space()

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special, self.openers)
        number = ""
        if self.id_key is not None:
            number = (
                grammar.rule(f'{string(quoted(self.id_key) + ": " + chr(34))} /[0-9]{{1,2}}/ "\\", "') + "?"
            )
        calls = json_calls(
            grammar,
            tools,
            parallel=parallel,
            name=self.name_key,
            arguments=self.arguments_key,
            around=(self.begin, self.between, self.end),
            first=number,
        )
        rest = f"{calls} {grammar.mark(self.closers[0])}" if self.closed else calls
        return grammar.source(self.openers[0], rest, required=required, repeat=False)

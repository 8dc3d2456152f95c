"""Calls as JSON: an array of objects, or objects one after the other, between two markers or alone."""

from pippin.output.grammars import Grammar, string
from pippin.output.notations.json_calls import read_array, read_call
from pippin.output.notations.json_text import quoted
from pippin.output.notations.parameters import read_function
from pippin.output.stream import Calls, Reading
from pippin.output.tool_format import History, ToolFormat, json_between
from pippin.output.tool_parsers.tagged import FUNCTION_TAGS

PYTHON_TAG = "<|python_tag|>"


class JsonEnvelope(ToolFormat, frozen=True, kw_only=True):
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
        yield from source.space()
        listed = (yield from source.expect("[", "{")) == "["
        yield from read_array(calls) if listed else read_call(calls, opened=True)
        yield from source.space()
        while (yield from source.peek()) == "{":
            yield from read_call(calls)
            yield from source.space()

    def lark(self, grammar: Grammar) -> str:
        number = ""
        if self.id_key is not None:
            number = (
                grammar.rule(f'{string(quoted(self.id_key) + ": " + chr(34))} /[0-9]{{1,2}}/ "\\", "') + "?"
            )
        around = (self.begin, self.between, self.end)
        calls = grammar.json_calls(around, name=self.name_key, arguments=self.arguments_key, first=number)
        rest = f"{calls} {grammar.mark(self.closers[0])}" if self.closed else calls
        return grammar.source(self.openers[0], rest)


class XlamCalls(ToolFormat, frozen=True, kw_only=True):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        source = calls.source
        if opener != "[":
            yield from source.space()
            yield from source.expect("[")
        yield from read_array(calls, bare=True)
        if opener.startswith("```"):
            yield from source.space()
            yield from source.literal("```")

    def lark(self, grammar: Grammar) -> str:
        return grammar.bare(grammar.json_calls())


class LlamaCalls(ToolFormat, frozen=True, kw_only=True):
    """Objects with semicolons between them, tagged or alone."""

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        source = calls.source
        if opener == "<function=":
            yield from read_function(calls, FUNCTION_TAGS, taken="=")
            return
        if opener == PYTHON_TAG:
            yield from source.space()
            yield from source.expect("{")
        more: str | None = "{"
        while more:
            yield from read_call(calls, bare=opener != PYTHON_TAG, opened=True)
            yield from source.space()
            if (yield from source.literal(";", ",")) is None:
                return
            yield from source.space()
            more = yield from source.literal("{")

    def lark(self, grammar: Grammar) -> str:
        call = grammar.calls(lambda tool: grammar.json_call(tool, arguments="parameters"))
        return grammar.bare(grammar.several(call, '"; "'))


CODED = {
    "apriel": {"history": History(write=json_between("<tool_calls>[", "]</tool_calls>"))},
    "granite": {"history": History(write=json_between("<|tool_call|>[", "]"))},
}

"""Calls of Mistral: a name and JSON, or an array of objects."""

from pippin.output.grammars import Grammar, string
from pippin.output.notations.json_calls import read_arguments, read_array
from pippin.output.notations.json_text import quoted
from pippin.output.notations.parameters import tool_name
from pippin.output.stream import Calls, Markers, Reading
from pippin.output.tool_format import ToolFormat

CALLS, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class MistralCalls(ToolFormat, frozen=True, kw_only=True):
    """The grammar enforces the newer form if the tokenizer has its tokens, else the array."""

    openers: tuple[str, ...] = (CALLS,)
    further_markers: tuple[str, ...] = (CALL_ID, ARGUMENTS)

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        source = calls.source
        yield from source.space()
        if (yield from source.literal("[")):
            yield from read_array(calls)
            return
        text, found = yield from source.before(Markers((CALL_ID, ARGUMENTS, "{")))
        name, call_id = tool_name(text), None
        if found == CALL_ID:
            call_id, found = yield from source.before(Markers((ARGUMENTS, "{")))
        calls.start(name, call_id)
        yield from source.space()
        calls.end((yield from read_arguments(calls, opened=found == "{")))

    def lark(self, grammar: Grammar) -> str:
        if not grammar.is_special(ARGUMENTS):
            call_id = grammar.rule(f'{string(", " + quoted("id") + ": " + chr(34))} /[A-Za-z0-9]{{9}}/ "\\""')
            return grammar.source(CALLS, f'" "? {grammar.json_calls(last=f"{call_id}?")}')
        call_id = f"({grammar.mark(CALL_ID)} /[A-Za-z0-9]{{9}}/)? " if grammar.is_special(CALL_ID) else ""
        call = grammar.named_calls(lambda name: f"{string(name)} {call_id}{grammar.mark(ARGUMENTS)}")
        return grammar.source(CALLS, call, repeat=True)

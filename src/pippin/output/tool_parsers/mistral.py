"""Mistral: `[TOOL_CALLS][{"name": ...}]`, `[TOOL_CALLS]f{json}`, `[TOOL_CALLS]f[ARGS]{json}`."""

from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.grammars import Grammar, parameters_of, string
from pippin.output.json_calls import read_arguments, read_array
from pippin.output.markers import Markers
from pippin.output.parameters import tool_name
from pippin.output.source import Reading
from pippin.output.tool_format import Calls, History, SpecialToken, ToolFormat

CALLS, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


@dataclass(frozen=True, kw_only=True)
class MistralCalls(ToolFormat):
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
        calls.writer.start_call(name, call_id)
        yield from source.space()
        yield from read_arguments(calls, opened=found == "{")
        calls.writer.end_call()

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special)
        options = [
            f"{string(tool.name)} {grammar.mark(ARGUMENTS)} {grammar.json(parameters_of(tool))}"
            for tool in tools
        ]
        return grammar.source(CALLS, grammar.either(options), required=required, repeat=parallel)


FORMAT = MistralCalls(
    name="mistral",
    openers=(CALLS,),
    further_markers=(CALL_ID, ARGUMENTS),
    history=History(call_ids="nine"),
    signs=((CALLS,),),
    priority=40,
)

"""`[{"name": "f", "arguments": {...}}]` alone, in a fence, or after `[TOOL_CALLS]`: xLAM."""

from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.calls import Calls
from pippin.output.grammars import Grammar, json_calls
from pippin.output.notations.json_calls import read_array
from pippin.output.stream import Reading
from pippin.output.tool_format import SpecialToken, ToolFormat


@dataclass(frozen=True, kw_only=True)
class XlamCalls(ToolFormat):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        source = calls.source
        if opener != "[":
            yield from source.space()
            yield from source.expect("[")
        yield from read_array(calls, bare=True)
        if opener.startswith("```"):
            yield from source.space()
            yield from source.literal("```")

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special, self.openers, self.leading)
        calls = json_calls(grammar, tools, parallel=parallel)
        return grammar.lines(calls if required else f"{calls} | {grammar.text()}?")


FORMAT = XlamCalls(
    name="xlam",
    openers=("```json", "```\n[", "[TOOL_CALLS]"),
    leading=("[",),
    signs=(("xLAM",), ("xlam",)),
    priority=45,
)

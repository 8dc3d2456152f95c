"""Calls of xLAM: an array of objects alone."""

from dataclasses import dataclass

from pippin.output.grammars import Grammar
from pippin.output.notations.json_calls import read_array
from pippin.output.stream import Calls, Reading
from pippin.output.tool_format import ToolFormat


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

    def lark(self, grammar: Grammar) -> str:
        return grammar.bare(grammar.json_calls())


FORMATS = (
    XlamCalls(
        about='`[{"name": "f", "arguments": {...}}]` alone, in a fence, or after `[TOOL_CALLS]`: xLAM.',
        name="xlam",
        openers=("```json", "```\n[", "[TOOL_CALLS]"),
        leading=("[",),
        signs=(("xLAM",), ("xlam",)),
        priority=45,
    ),
)

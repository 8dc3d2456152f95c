"""Calls of Qwen 2.5 and 3: `<tool_call>{json}</tool_call>`, and `[Calling tool: f({...})]` when it slips."""

from dataclasses import dataclass

from pippin.output.calls import Calls
from pippin.output.notations.json_calls import read_arguments
from pippin.output.notations.parameters import tool_name
from pippin.output.notations.tagged_calls import TaggedCalls
from pippin.output.stream import Markers, Reading
from pippin.output.tool_format import History, write_json_tags

BRACKET = "[Calling tool:"


@dataclass(frozen=True, kw_only=True)
class QwenCalls(TaggedCalls):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        if opener != BRACKET:
            yield from super().read(calls, opener)
            return
        name, _ = yield from calls.source.before(Markers(("(",)))
        calls.start(tool_name(name))
        yield from calls.source.space()
        if (yield from calls.source.peek()) != ")":
            yield from read_arguments(calls)
            yield from calls.source.space()
        yield from calls.source.literal(")]")
        calls.end()


FORMAT = QwenCalls(
    name="qwen",
    aliases=("qwen3", "qwen3_moe", "qwen3_vl", "qwen3_next", "iquest_coder_v1"),
    history=History(write=write_json_tags),
    openers=("<tool_call>", "<function=", BRACKET),
    closers=("</tool_call>",),
)

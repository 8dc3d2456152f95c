"""Calls of Step 3.5: as Qwen3-Coder; generation stops at the end of the call."""

from pippin.output.notations.tagged_calls import TaggedCalls
from pippin.output.tool_format import History, write_json_tags

FORMAT = TaggedCalls(
    name="step3p5",
    aliases=("step", "step_35"),
    history=History(write=write_json_tags),
    openers=("<tool_call>", "<function="),
    closers=("</tool_call>",),
    stops=("</tool_call>",),
    body="function",
)

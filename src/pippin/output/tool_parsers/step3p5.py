"""Calls of Step 3.5: as Qwen3-Coder; generation stops at the end of the call."""

from pippin.output.tagged_calls import TaggedCalls

FORMAT = TaggedCalls(
    name="step3p5",
    aliases=("step", "step_35"),
    openers=("<tool_call>", "<function="),
    closers=("</tool_call>",),
    stops=("</tool_call>",),
    body="function",
)

"""`<think>` or `<thinking>`, which a call ends as well as its own end marker."""

from pippin.output.reasoning_format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="mixed_think_tool_handoff",
    start="<think>",
    end="</think>",
    starts=("<thinking>",),
    ends=("</thinking>",),
    handoff=("<tool_call>",),
)

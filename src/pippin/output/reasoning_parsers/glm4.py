"""`<think>` reasoning `</think>`, and a box around the answer that is dropped: GLM 4."""

from pippin.output.reasoning_format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="glm4",
    aliases=("glm45",),
    start="<think>",
    end="</think>",
    dropped=("<|begin_of_box|>", "<|end_of_box|>"),
    signs=(("<think>", "<|begin_of_box|>"), ("<think>", "[gMASK]<sop>")),
    priority=10,
)

"""`<|START_THINKING|>` reasoning `<|END_THINKING|>`, then a response: Command R7B, Command A."""

from pippin.output.reasoning_format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="cohere",
    aliases=("cohere2_moe", "cohere_command"),
    start="<|START_THINKING|>",
    end="<|END_THINKING|>",
    dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    before_answer=("<|START_RESPONSE|>",),
    after_answer=("<|END_RESPONSE|>",),
    signs=(("<|START_THINKING|>",), ("<|START_RESPONSE|>",)),
    priority=20,
)

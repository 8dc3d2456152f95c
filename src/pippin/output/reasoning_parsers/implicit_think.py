"""Reasoning that may begin with the answer itself and ends at `</think>`: DeepSeek R1 and its kin."""

from pippin.output.reasoning_format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="implicit_think",
    aliases=(
        "deepseek_r1",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_vl",
        "qwen3_5",
        "glm47_flash",
        "minimax_m2",
        "nemotron3_nano",
    ),
    start="<think>",
    end="</think>",
    implicit=True,
)

"""`<think>` reasoning `</think>`: most families."""

from pippin.output.reasoning_format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="think",
    aliases=(
        "qwen3",
        "hermes",
        "glm4_moe",
        "deepseek_v4",
        "deepseek_v3",
        "step_35",
        "step3p5",
        "poolside_v1",
        "kimi_k2",
        "granite",
    ),
    start="<think>",
    end="</think>",
    signs=(("<think>",), ("</think>",)),
)

"""`<|think|>` reasoning `<|end|>`, then a message of its own: Solar Open."""

from pippin.output.reasoning_format import ReasoningFormat

ENVELOPE = ("<|begin|>assistant", "<|content|>", "<|flush|>", "<|end|>")

FORMAT = ReasoningFormat(
    name="solar_open",
    start="<|think|>",
    end="<|end|>",
    dropped=ENVELOPE,
    before_answer=("<|begin|>", "assistant", "<|content|>"),
    signs=(("<|think|>", "<|begin|>"),),
    priority=20,
)

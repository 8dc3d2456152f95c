"""`<|open|>think<|sep|>` reasoning `<|close|>think<|sep|>`, then a response: Kimi K3."""

from pippin.output.reasoning_format import ReasoningFormat

ENVELOPE = (
    "<|open|>response<|sep|>",
    "<|close|>response<|sep|>",
    "<|close|>message<|sep|>",
    "<|end_of_msg|>",
)

FORMAT = ReasoningFormat(
    name="kimi_k3",
    start="<|open|>think<|sep|>",
    end="<|close|>think<|sep|>",
    dropped=ENVELOPE,
    before_answer=("<|open|>", "response", "<|sep|>"),
    after_answer=("<|close|>", "response", "<|sep|>"),
    signs=(("<|open|>", "<|sep|>"),),
    priority=30,
)

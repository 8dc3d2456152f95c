"""`<|channel>thought` reasoning `<channel|>`: Gemma 4."""

from pippin.output.reasoning_format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="gemma4",
    start="<|channel>thought\n",
    end="<channel|>",
    starts=("<|channel>thought", "<|channel>"),
    signs=(("<|channel>",),),
    priority=20,
)

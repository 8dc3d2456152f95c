"""Calls of Nemotron 3: as Qwen3-Coder, or `<function=f>{json}</function>` inside the tag."""

from pippin.output.tagged_calls import TaggedCalls

FORMAT = TaggedCalls(
    name="nemotron",
    aliases=("nemotron3", "nemotron3_nano"),
    openers=("<tool_call>", "<function="),
    closers=("</tool_call>",),
    body="function",
)

"""Calls of Nemotron 3: as Qwen3-Coder, or `<function=f>{json}</function>` inside the tag."""

from pippin.output.notations.tagged_calls import TaggedCalls
from pippin.output.tool_format import History, write_json_tags

FORMAT = TaggedCalls(
    name="nemotron",
    aliases=("nemotron3", "nemotron3_nano"),
    history=History(write=write_json_tags),
    openers=("<tool_call>", "<function="),
    closers=("</tool_call>",),
    body="function",
)

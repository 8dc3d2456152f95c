"""`<tool_call>{"name": "f", "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and many more."""

from pippin.output.notations.tagged_calls import TaggedCalls
from pippin.output.tool_format import History, write_json_tags

FORMAT = TaggedCalls(
    name="json_tools",
    aliases=("hermes", "nous", "granite4"),
    history=History(write=write_json_tags),
    openers=("<tool_call>", "<function="),
    closers=("</tool_call>",),
    signs=(("<tool_call>", "tool_call.name"), ("<tool_call>", "arguments")),
)

"""`<tool_call>{"name": "f", "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and many more."""

from pippin.output.tagged_calls import TaggedCalls

FORMAT = TaggedCalls(
    name="json_tools",
    aliases=("hermes", "nous", "granite4"),
    openers=("<tool_call>", "<function="),
    closers=("</tool_call>",),
    signs=(("<tool_call>", "tool_call.name"), ("<tool_call>", "arguments")),
)

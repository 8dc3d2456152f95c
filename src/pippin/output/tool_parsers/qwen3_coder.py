"""`<tool_call><function=f><parameter=k>v</parameter></function></tool_call>`: Qwen3-Coder, Qwen 3.5."""

from pippin.output.tagged_calls import TaggedCalls

FORMAT = TaggedCalls(
    name="qwen3_coder",
    aliases=("qwen3_xml", "qwen3.5", "qwen3_5"),
    openers=("<tool_call>", "<function="),
    closers=("</tool_call>",),
    body="function",
    signs=(("<tool_call>\\n<function=",), ("<tool_call>\n<function=",)),
    priority=20,
)

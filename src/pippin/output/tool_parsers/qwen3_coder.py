"""`<tool_call><function=f><parameter=k>v</parameter></function></tool_call>`: Qwen3-Coder, Qwen 3.5, Nemotron 3."""

from pippin.output.notations.tagged_calls import TaggedCalls
from pippin.output.tool_format import History, write_json_tags

FORMAT = TaggedCalls(
    name="qwen3_coder",
    aliases=("qwen3_xml", "qwen3.5", "qwen3_5", "nemotron", "nemotron3", "nemotron3_nano"),
    history=History(write=write_json_tags),
    openers=("<tool_call>", "<function="),
    closers=("</tool_call>",),
    body="function",
    signs=(("<tool_call>\\n<function=",), ("<tool_call>\n<function=",)),
    priority=20,
)

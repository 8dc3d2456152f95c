"""`<|tool_call|>[{"name": "f", "arguments": {...}}]`: Granite 3."""

from pippin.output.notations.json_envelopes import JsonEnvelope, writes_array
from pippin.output.tool_format import History

FORMAT = JsonEnvelope(
    name="granite",
    aliases=("granite3",),
    openers=("<|tool_call|>", "<tool_call>"),
    closers=("</tool_call>",),
    closed=False,
    history=History(write=writes_array("<|tool_call|>")),
    signs=(("<|tool_call|>",),),
    priority=40,
)

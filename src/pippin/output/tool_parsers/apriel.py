"""`<tool_calls>[{"name": "f", "arguments": {...}}]</tool_calls>`: Apriel, Hunyuan; MiniMax M1 without the brackets."""

from pippin.output.notations.json_envelopes import JsonEnvelope, writes_array
from pippin.output.tool_format import History

FORMAT = JsonEnvelope(
    name="apriel",
    aliases=("hunyuan_a13b", "minimax_m1"),
    openers=("<tool_calls>",),
    closers=("</tool_calls>",),
    history=History(write=writes_array("<tool_calls>", "</tool_calls>")),
    signs=(("<tool_calls>",),),
    priority=30,
)

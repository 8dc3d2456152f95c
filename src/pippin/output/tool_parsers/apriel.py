"""`<tool_calls>[{"name": "f", "arguments": {...}}]</tool_calls>`: Apriel, Hunyuan; MiniMax M1 without the brackets."""

import json
from typing import Any

from pippin.output.notations.json_envelopes import JsonEnvelope
from pippin.output.tool_format import History


def write(name: str, arguments: dict[str, Any]) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_calls>[{call}]</tool_calls>"


FORMAT = JsonEnvelope(
    name="apriel",
    aliases=("hunyuan_a13b", "minimax_m1"),
    openers=("<tool_calls>",),
    closers=("</tool_calls>",),
    history=History(write=write),
    signs=(("<tool_calls>",),),
    priority=30,
)

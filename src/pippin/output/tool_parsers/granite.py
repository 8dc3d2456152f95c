"""`<|tool_call|>[{"name": "f", "arguments": {...}}]`: Granite 3."""

import json
from typing import Any

from pippin.output.notations.json_envelopes import JsonEnvelope
from pippin.output.tool_format import History


def write(name: str, arguments: dict[str, Any]) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<|tool_call|>[{call}]"


FORMAT = JsonEnvelope(
    name="granite",
    aliases=("granite3",),
    openers=("<|tool_call|>", "<tool_call>"),
    closers=("</tool_call>",),
    closed=False,
    history=History(write=write),
    signs=(("<|tool_call|>",),),
    priority=40,
)

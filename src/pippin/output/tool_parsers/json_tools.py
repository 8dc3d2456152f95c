"""`<tool_call>{"name": "f", "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and 3, and many more."""

import json
from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.json_calls import read_calls
from pippin.output.source import Reading
from pippin.output.tool_format import Calls, IsSpecial, ToolFormat


@dataclass(frozen=True, kw_only=True)
class JsonTools(ToolFormat):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        yield from read_calls(calls)
        yield from calls.source.space()
        yield from calls.source.literal(*self.closers)

    def grammar(self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: IsSpecial) -> str:
        def mark(text: str) -> str:
            return text if special(text) else json.dumps(text)

        names = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.name},
                    "arguments": tool.parameters or {"type": "object"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for tool in tools
        ]
        more = "(/\\n?/ call)*" if parallel else ""
        before = "" if required else "/(.|\\n)*/ "
        return f"""start: {before}call {more}
call: {mark(self.openers[0])} /\\n?/ %json {json.dumps({"anyOf": names})} /\\n?/ {mark(self.closers[0])}
"""


FORMAT = JsonTools(
    name="json_tools",
    aliases=("hermes",),
    openers=("<tool_call>",),
    closers=("</tool_call>",),
    signs=(("<tool_call>", "arguments"),),
)

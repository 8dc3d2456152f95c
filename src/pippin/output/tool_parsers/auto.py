"""Any of the common formats, told apart by their markers: for models whose template tells nothing."""

from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.source import Malformed, Reading
from pippin.output.tool_format import Calls, SpecialToken, ToolFormat
from pippin.output.tool_parsers import (
    deepseek,
    deepseek_v4,
    gemma4,
    kimi_k2,
    llama,
    longcat,
    minimax_m2,
    mistral,
    qwen,
)

PARTS: tuple[ToolFormat, ...] = (
    gemma4.FORMAT,
    deepseek_v4.FORMAT,
    mistral.FORMAT,
    qwen.FORMAT,
    kimi_k2.FORMAT,
    minimax_m2.FORMAT,
    longcat.FORMAT,
    deepseek.FORMAT,
    llama.FORMAT,
)


@dataclass(frozen=True, kw_only=True)
class AnyCalls(ToolFormat):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        for part in PARTS:
            if opener in (*part.openers, *part.leading):
                yield from part.read(calls, opener)
                return
        raise Malformed

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        return qwen.FORMAT.grammar(tools, required=required, parallel=parallel, special=special)


FORMAT = AnyCalls(
    name="auto",
    aliases=("generic",),
    openers=tuple(dict.fromkeys(opener for part in PARTS for opener in part.openers)),
    leading=llama.FORMAT.leading,
    closers=tuple(dict.fromkeys(closer for part in PARTS for closer in part.closers)),
    further_markers=tuple(dict.fromkeys(marker for part in PARTS for marker in part.further_markers)),
)

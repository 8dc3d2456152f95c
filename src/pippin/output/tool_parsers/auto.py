"""Any of the common formats, told apart by their markers: for models whose template tells nothing."""

from dataclasses import dataclass, replace

from pippin.core.conversation import Tool
from pippin.output.calls import Calls
from pippin.output.stream import Malformed, Reading
from pippin.output.tool_format import History, SpecialToken, ToolFormat, write_json_tags
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
    qwen.FORMAT,  # first, because grammars enforce this format
    gemma4.FORMAT,
    deepseek_v4.FORMAT,
    mistral.FORMAT,
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
        written = replace(qwen.FORMAT, openers=self.openers, leading=self.leading)
        return written.grammar(tools, required=required, parallel=parallel, special=special)


FORMAT = AnyCalls(
    name="auto",
    aliases=("generic",),
    history=History(write=write_json_tags),
    openers=tuple(dict.fromkeys(opener for part in PARTS for opener in part.openers)),
    leading=llama.FORMAT.leading,
    closers=tuple(dict.fromkeys(closer for part in PARTS for closer in part.closers)),
    further_markers=tuple(dict.fromkeys(marker for part in PARTS for marker in part.further_markers)),
)

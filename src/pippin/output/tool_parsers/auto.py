"""Calls of models whose template tells nothing about them."""

from pippin.output.grammars import Grammar
from pippin.output.notations.json_calls import read_array
from pippin.output.stream import Calls, Malformed, Reading
from pippin.output.tool_format import History, ToolFormat, write_json_tags
from pippin.output.tool_parsers.deepseek import DEEPSEEK
from pippin.output.tool_parsers.gemma import GEMMA4
from pippin.output.tool_parsers.invoke import DEEPSEEK_V4, MINIMAX_M2
from pippin.output.tool_parsers.json_envelopes import LLAMA
from pippin.output.tool_parsers.kimi_k2 import KIMI_K2
from pippin.output.tool_parsers.mistral import MISTRAL
from pippin.output.tool_parsers.tagged import BRACKET, LONGCAT, QWEN

PARTS: tuple[ToolFormat, ...] = (
    QWEN,  # first, because grammars enforce this format
    GEMMA4,
    DEEPSEEK_V4,
    MISTRAL,
    KIMI_K2,
    MINIMAX_M2,
    LONGCAT,
    DEEPSEEK,
    LLAMA,
)


class AnyCalls(ToolFormat, frozen=True, kw_only=True):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        if opener == "[":
            # Without a marker: an array of objects, or `[f({...})]`.
            yield from calls.source.space()
            listed = (yield from calls.source.peek()) == "{"
            yield from read_array(calls, bare=True) if listed else QWEN.read(calls, BRACKET)
            return
        for part in PARTS:
            if opener in (*part.openers, *part.leading):
                yield from part.read(calls, opener)
                return
        raise Malformed

    def lark(self, grammar: Grammar) -> str:
        return QWEN.lark(grammar)


FORMATS = (
    AnyCalls(
        about="Any of the common formats, told apart by their markers, and `[f({...})]` or an array of objects alone: "
        "for models whose template tells nothing.",
        name="auto",
        aliases=("generic",),
        history=History(write=write_json_tags),
        openers=tuple(dict.fromkeys(opener for part in PARTS for opener in part.openers)),
        leading=(*LLAMA.leading, "["),
        signs=(),
        closers=tuple(dict.fromkeys(closer for part in PARTS for closer in part.closers)),
        further_markers=tuple(dict.fromkeys(marker for part in PARTS for marker in part.further_markers)),
    ),
)

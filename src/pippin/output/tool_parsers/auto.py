"""Calls of models whose template tells nothing about them."""

from collections.abc import Callable, Mapping
from operator import attrgetter

from pippin.output.grammars import Grammar
from pippin.output.notations.json_calls import read_array
from pippin.output.stream import Calls, Malformed, Reading
from pippin.output.tool_format import History, ToolFormat, write_json_tags
from pippin.output.tool_parsers.tagged import BRACKET

PARTS = (
    "qwen",  # first, because grammars enforce this format
    *("gemma4", "deepseek_v4", "mistral", "kimi_k2", "minimax_m2", "longcat", "deepseek", "llama"),
)


class AnyCalls(ToolFormat, frozen=True, kw_only=True):
    parts: tuple[ToolFormat, ...]

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        if opener == "[":
            # Without a marker: an array of objects, or `[f({...})]`.
            yield from calls.source.space()
            listed = (yield from calls.source.peek()) == "{"
            yield from read_array(calls, bare=True) if listed else self.parts[0].read(calls, BRACKET)
            return
        for part in self.parts:
            if opener in (*part.openers, *part.leading):
                yield from part.read(calls, opener)
                return
        raise Malformed

    def lark(self, grammar: Grammar) -> str:
        return self.parts[0].lark(grammar)


def any_calls(known: Mapping[str, ToolFormat]) -> AnyCalls:
    """The format of all `PARTS` together."""
    parts = tuple(known[name] for name in PARTS)

    def of_all(field: Callable[[ToolFormat], tuple[str, ...]]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(marker for part in parts for marker in field(part)))

    return AnyCalls(
        about="Any of the common formats, told apart by their markers, and `[f({...})]` or an array of objects alone: "
        "for models whose template tells nothing.",
        name="auto",
        aliases=("generic",),
        history=History(write=write_json_tags),
        openers=of_all(attrgetter("openers")),
        leading=(*of_all(attrgetter("leading")), "["),
        closers=of_all(attrgetter("closers")),
        further_markers=of_all(attrgetter("further_markers")),
        parts=parts,
    )

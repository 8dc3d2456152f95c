"""`<|open|>tools<|sep|>`, calls as `<|open|>call tool="f" index="1"<|sep|>` with typed arguments: Kimi K3."""

from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.grammars import ANY, Grammar, parameters_of, string
from pippin.output.invoke_calls import InvokeCalls
from pippin.output.parameters import Tags
from pippin.output.tool_format import SpecialToken

OPEN, CLOSE, SEPARATOR = "<|open|>", "<|close|>", "<|sep|>"
TAGS = Tags(
    opens="<|open|>argument",
    head_end=SEPARATOR,
    close="<|close|>argument<|sep|>",
    ends=("<|close|>call<|sep|>",),
    function_head_end=SEPARATOR,
    whole=("<|open|>json", "<|close|>json<|sep|>"),
)


@dataclass(frozen=True, kw_only=True)
class KimiK3Calls(InvokeCalls):
    """The grammar has the arguments in one JSON block, which the family's template writes too."""

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special, self.openers)
        open_, close, separator = (grammar.mark(marker) for marker in (OPEN, CLOSE, SEPARATOR))
        options = [
            f"{string(f'call tool={chr(34)}{tool.name}{chr(34)} index={chr(34)}')} /[1-9]/ {string(chr(34))} "
            f'{separator} {open_} "json type=\\"object\\"" {separator} {grammar.json(parameters_of(tool))}'
            for tool in tools
        ]
        end = f'{close} "json" {separator} {close} "call" {separator}'
        call = grammar.rule(f"{open_} {grammar.either(options)} {end}")
        block = f'{open_} "tools" {separator} {call}{"+" if parallel else ""} {close} "tools" {separator}'
        if required:
            return grammar.lines(block)
        if grammar.is_special(OPEN):
            return grammar.lines(f"{grammar.rule(ANY)} ({block})?")
        inner = f'{call}{"+" if parallel else ""} {close} "tools" {separator}'
        return grammar.lines(f"({grammar.text_until(self.openers[0])} {inner})? {grammar.text()}")


FORMAT = KimiK3Calls(
    name="kimi_k3",
    openers=("<|open|>tools<|sep|>",),
    closers=("<|close|>tools<|sep|>",),
    further_markers=(OPEN, CLOSE, SEPARATOR),
    invoke="<|open|>call",
    tags=TAGS,
    signs=(("<|open|>", "<|sep|>"), ("'<|open|>'", "'<|sep|>'")),
    priority=50,
)

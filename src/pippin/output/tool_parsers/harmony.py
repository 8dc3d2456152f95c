"""`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{json}<|call|>`: gpt-oss."""

from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.grammars import ANY, Grammar, named_calls, string
from pippin.output.reasoning_parsers.harmony import CHANNELS, again, thoughts
from pippin.output.source import Malformed, Reading
from pippin.output.tool_format import Calls, SpecialToken, ToolFormat


@dataclass(frozen=True, kw_only=True)
class HarmonyCalls(ToolFormat):
    """Headers say what is a call, so that there is no opener to read from."""

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        raise Malformed
        yield

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special, self.openers)
        channel, message, end = map(grammar.mark, ("<|channel|>", "<|message|>", "<|end|>"))
        json = f'" "? {grammar.mark("<|constrain|>")}? " "? "json" {message}'

        def head(name: str) -> str:
            """The recipient stands with the channel or with the role: models write both."""
            to = string(f" to=functions.{name}")
            return f'({channel} "commentary" {to} | {to} {channel} "commentary") {json}'

        named = named_calls(grammar, tools, head, grammar.mark("<|call|>"))
        begin = again(grammar)
        said = grammar.rule(f'{begin} {channel} "commentary" {message} {grammar.value_until("<|end|>")}')
        call = grammar.rule(f"{begin} {named}")
        if required:
            return grammar.lines(f"{thoughts(grammar)} {call}")
        answer = grammar.rule(f'{begin} {channel} "final" {message} {grammar.rule(ANY)} {end}?')
        return grammar.lines(f"{thoughts(grammar)} {said}? ({call} | {answer})")


FORMAT = HarmonyCalls(
    name="harmony",
    aliases=("gpt_oss", "openai"),
    channels=CHANNELS,
    signs=(("<|channel|>commentary", "<|call|>"), ("<|channel|>analysis",)),
    priority=60,
)

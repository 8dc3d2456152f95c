"""`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{json}<|call|>`: gpt-oss."""

from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.grammars import ANY, Grammar, parameters_of, string
from pippin.output.reasoning_parsers.harmony import CHANNELS
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
        grammar = Grammar(special)
        start, channel, message, end = (
            grammar.mark(marker) for marker in ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
        )
        options = [
            f"{string('commentary to=functions.' + tool.name + ' ')} {grammar.mark('<|constrain|>')} "
            f'"json" {message} {grammar.json(parameters_of(tool))} {grammar.mark("<|call|>")}'
            for tool in tools
        ]
        again = grammar.rule(f'({start} "assistant")?')
        thought = grammar.rule(f'{again} {channel} "analysis" {message} {grammar.text_until("<|end|>")}')
        said = grammar.rule(f'{again} {channel} "commentary" {message} {grammar.text_until("<|end|>")}')
        call = grammar.rule(f"{again} {channel} {grammar.either(options)}")
        if required:
            return grammar.lines(f"{thought}* {call}")
        answer = grammar.rule(f'{again} {channel} "final" {message} {grammar.rule(ANY)} {end}?')
        return grammar.lines(f"{thought}* {said}? ({call} | {answer})")


FORMAT = HarmonyCalls(
    name="harmony",
    aliases=("gpt_oss", "openai"),
    channels=CHANNELS,
    signs=(("<|channel|>commentary", "<|call|>"), ("<|channel|>analysis",)),
    priority=60,
)

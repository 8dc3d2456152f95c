"""Calls of gpt-oss: messages on the commentary channel."""

from dataclasses import dataclass

from pippin.output.grammars import ANY, Grammar, string
from pippin.output.reasoning_formats import HARMONY, further_of_harmony, thoughts_of_harmony
from pippin.output.tool_format import HeaderCalls


@dataclass(frozen=True, kw_only=True)
class HarmonyCalls(HeaderCalls):
    def lark(self, grammar: Grammar) -> str:
        channel, message, end = map(grammar.mark, ("<|channel|>", "<|message|>", "<|end|>"))
        json = f'(" "? {grammar.mark("<|constrain|>")} " "? | " ") "json" {message}'

        def head(name: str) -> str:
            """The recipient comes after the channel or before it, with the role: models write both."""
            to = string(f" to=functions.{name}")
            return f'({channel} "commentary" {to} | {to} {channel} "commentary") {json}'

        named = grammar.named_calls(head, grammar.mark("<|call|>"))
        if grammar.required:
            return grammar.lines(f"{thoughts_of_harmony(grammar)} {named}")
        said = grammar.rule(further_of_harmony(grammar, "commentary"))
        answer = grammar.rule(f'{channel} "final" {message} {grammar.rule(ANY)} {end}?')
        return grammar.lines(f"{thoughts_of_harmony(grammar)} {said}? ({named} | {answer})")


FORMATS = (
    HarmonyCalls(
        about="`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{json}<|call|>`: gpt-oss.",
        name="harmony",
        aliases=("gpt_oss", "openai"),
        channels=HARMONY,
        signs=(("<|channel|>commentary", "<|call|>"), ("<|channel|>analysis",)),
        priority=60,
    ),
)

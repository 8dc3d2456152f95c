"""Calls that headers name: messages of gpt-oss, and Functionary's formats, where headers or tags name the function."""

from pippin.output.channels import Channels, Route
from pippin.output.grammars import ANY, Grammar, string
from pippin.output.notations.json_calls import read_array
from pippin.output.notations.parameters import read_function
from pippin.output.reasoning_formats import HARMONY, further_of_harmony, thoughts_of_harmony
from pippin.output.stream import Calls, Reading
from pippin.output.tool_format import ToolFormat
from pippin.output.tool_parsers.tagged import FUNCTION_TAGS


def route_of_recipient(header: str) -> Route:
    recipient = header.split()[-1] if header.split() else "all"
    return Route("text") if recipient in ("all", "user", "assistant") else Route("call", recipient)


def route_of_line(header: str) -> Route:
    return Route("text") if header.strip() == "all" else Route("call", header.strip())


RECIPIENTS = Channels(
    openers=("<|from|>", "<|recipient|>"),
    header_ends=("<|content|>",),
    ends=("<|stop|>",),
    route=route_of_recipient,
    begins=("all\n",),
    recipients=True,
)
OPENER = ">>>"
LINES = Channels(
    openers=(OPENER,),
    header_ends=("\n",),
    ends=(),
    route=route_of_line,
    begins=("all\n",),
    recipients=True,
    known=True,
)


class HarmonyCalls(ToolFormat, frozen=True, kw_only=True):
    channels: Channels | None = HARMONY

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


class FunctionTags(ToolFormat, frozen=True, kw_only=True):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        yield from read_function(calls, FUNCTION_TAGS, taken="=")

    def lark(self, grammar: Grammar) -> str:
        call = grammar.named_calls(lambda name: string(f"{name}>"), grammar.mark(self.closers[0]))
        return grammar.source(self.openers[0], call, repeat=True)


class FunctionaryCalls(FunctionTags, frozen=True, kw_only=True):
    """The prompt begins the first header: it ends in `<|recipient|>`. An array of objects alone is a slip."""

    channels: Channels | None = RECIPIENTS

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        yield from (read_array(calls, bare=True) if opener == "[" else super().read(calls, opener))

    def lark(self, grammar: Grammar) -> str:
        content = grammar.mark("<|content|>")
        head = f'"assistant\\n" {grammar.mark("<|recipient|>")}'
        call = grammar.named_calls(lambda name: f"{string(name + chr(10))} {content}")
        calls = grammar.several(call, f'"\\n" {grammar.mark("<|from|>")} {head}')
        if grammar.required:
            return grammar.lines(calls)
        said = f"{grammar.text_until('<|from|>')} {head} {calls}"
        return grammar.lines(f'{calls} | "all\\n" {content} ({said} | {grammar.text()})')


class FunctionaryLines(ToolFormat, frozen=True, kw_only=True):
    """The prompt ends with the first opener."""

    channels: Channels | None = LINES

    def lark(self, grammar: Grammar) -> str:
        call = grammar.named_calls(lambda name: string(f"{name}\n"))
        calls = grammar.several(call, string(OPENER))
        if grammar.required:
            return grammar.lines(calls)
        return grammar.lines(f'{calls} | "all\\n" ({grammar.text_until(OPENER)} {calls} | {grammar.text()})')

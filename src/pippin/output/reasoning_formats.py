"""The formats of reasoning that Pippin knows."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pippin.core.decoding import from_json
from pippin.output.channels import Channels, Route
from pippin.output.grammars import Grammar, SpecialToken

BLANKS = r"/[ \t\r\n]{1,4}/"
"""Whitespace after the end of reasoning. It is bounded, because small models can get stuck writing whitespace."""


@dataclass(frozen=True, kw_only=True)
class ReasoningFormat:
    about: str  # how it looks, and which families write it
    name: str
    aliases: tuple[str, ...] = ()
    start: str
    end: str
    starts: tuple[str, ...] = ()  # further spellings of the start
    ends: tuple[str, ...] = ()
    implicit: bool = False  # the answer may begin inside reasoning without a start marker
    handoff: tuple[str, ...] = ()  # openers of calls that end reasoning too
    dropped: tuple[str, ...] = ()  # markup around the answer itself
    signs: tuple[tuple[str, ...], ...] = ()  # a template that contains all signs of a group uses this format
    priority: int = 0
    channels: Channels | None = None  # the format structures the whole answer
    before_answer: tuple[str, ...] = ()  # markers and texts between the reasoning and the answer
    after_answer: tuple[str, ...] = ()
    in_grammar: Callable[[Grammar], str] | None = None
    """Reasoning as an expression, if grammars include it: they then apply from the answer's first token."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Strings that must survive detokenization, even if they are special tokens."""
        channels = self.channels.markers if self.channels else ()
        return (self.start, self.end, *self.starts, *self.ends, *self.dropped, *channels)

    def matches(self, template: str) -> bool:
        return any(all(sign in template for sign in group) for group in self.signs)

    def open_in(self, prompt_text: str) -> bool:
        """Whether the rendered prompt ends inside reasoning."""
        return prompt_text.rstrip().endswith(tuple(start.rstrip() for start in (self.start, *self.starts)))

    def around(self, special: SpecialToken, inner: str, *, thinks: bool) -> str:
        """The grammar of a whole answer: Lark source around `inner`, which refers to one or more grammars of a
        client's. `thinks`: reasoning may come before.

        Optional markers are left out of the grammar if the vocabulary has no tokens for them, because an answer may
        begin or end with the same text.
        """
        grammar = Grammar(special)
        before = " ".join(map(grammar.mark, self.before_answer))
        if not self.in_grammar and not any(map(grammar.is_special, self.before_answer)):
            before = ""
        after = " ".join(map(grammar.mark, self.after_answer))
        if not any(map(grammar.is_special, self.after_answer)):
            after = ""
        if self.in_grammar:
            head = f"{self.in_grammar(grammar)} {before}"
        else:
            head = (f"{grammar.rule(BLANKS)}?" if thinks else "") + (f" ({before})?" if before else "")
        return grammar.lines(f"{head} ({inner})" + (f" ({after})?" if after else ""))

    def ahead_of_calls(self, special: SpecialToken, inner: str, *, thinks: bool) -> str:
        """Lark source around `inner`, which refers to a format's own grammar of calls."""
        grammar = Grammar(special)
        return grammar.lines(f"{grammar.rule(BLANKS)}? {inner}" if thinks and not self.in_grammar else inner)


def route_of_harmony(header: str) -> Route:
    """Route a header such as `assistant to=functions.f commentary json`: recipient and channel, in either order."""
    words = header.split()
    recipient = next((word[3:] for word in words if word.startswith("to=")), None)
    if recipient not in (None, "user", "assistant", "all"):
        return Route("call", recipient.removeprefix("functions."))
    return Route("reasoning" if "analysis" in words else "text")


HARMONY = Channels(
    openers=("<|start|>", "<|channel|>"),
    header_ends=("<|message|>",),
    ends=("<|end|>", "<|return|>", "<|call|>"),
    route=route_of_harmony,
    begins=("to=",),
    further=("<|constrain|>",),
)


def thoughts_of_harmony(grammar: Grammar) -> str:
    """Any number of messages on the analysis channel, each followed by the beginning of the next message."""
    return f"{grammar.rule(further_of_harmony(grammar, 'analysis'))}*"


def further_of_harmony(grammar: Grammar, channel: str) -> str:
    """A message on this channel and the beginning of the next one; the prompt begins the first."""
    opener, message, start = map(grammar.mark, ("<|channel|>", "<|message|>", "<|start|>"))
    return f'{opener} "{channel}" {message} {grammar.value_until("<|end|>")} {start} "assistant"'


def route_of_muse(header: str) -> Route:
    """Route a header. A message to a tool contains its call as markup, which is read as text."""
    return Route("reasoning" if "to=self" in header.split() else "text")


MUSE = Channels(
    openers=("<|start|>",),
    header_ends=("<|message|>",),
    ends=("<|eom|>", "<|eot|>"),
    route=route_of_muse,
    begins=("to=",),
)


def thoughts_of_muse(grammar: Grammar) -> str:
    """Any number of messages to itself, each followed by the beginning of the next one; the prompt begins the first."""
    said = grammar.value_until("<|eom|>")
    message = grammar.mark("<|message|>")
    start = grammar.mark("<|start|>")
    return grammar.rule(f'" to=self" {message} {said} {start} "assistant"') + "*"


def next_message_of_muse(grammar: Grammar) -> str:
    return f'{grammar.mark("<|eom|>")} {grammar.mark("<|start|>")} "assistant"'


CODED: Final[dict[str, dict[str, Any]]] = {
    "harmony": {"channels": HARMONY, "in_grammar": thoughts_of_harmony},
    "muse_spark": {"channels": MUSE, "in_grammar": thoughts_of_muse},
}
"""What is no text in the formats of that name."""


FORMATS: Final = {
    each.name: replace(each, **CODED.get(each.name, {}))
    for each in from_json(Path(__file__).with_suffix(".json").read_bytes(), list[ReasoningFormat])
}
"""The formats of `reasoning_formats.json`, where a new one is added."""

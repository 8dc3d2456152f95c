"""The definition of a reasoning format: its markers, and how to detect that a prompt ends inside reasoning."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pippin.output.channels import Channels
from pippin.output.grammars import Grammar


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

    def with_markers(self, start: str | None, end: str | None) -> "ReasoningFormat":
        """This format with a client's own markers."""
        return replace(self, start=start or self.start, end=end or self.end)

"""The definition of a tool-call format: how calls are written, parsed, detected and enforced."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

from pippin.core.conversation import Tool
from pippin.output.channels import Channels
from pippin.output.grammars import Grammar, SpecialToken
from pippin.output.stream import Calls, Malformed, Reading

Write = Callable[[str, dict[str, Any]], str]
"""A call's text, from its name and its arguments."""


def json_between(opener: str, closer: str) -> Write:
    """Writes the name and the arguments as JSON between two markers."""

    def write(name: str, arguments: dict[str, Any]) -> str:
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        return f"{opener}{call}{closer}"

    return write


write_json_tags = json_between("<tool_call>\n", "\n</tool_call>")
"""The most common format. Its models understand it even if it is not in their template."""


@dataclass(frozen=True, kw_only=True)
class History:
    """How earlier calls and their results are passed to the chat template."""

    write: Write | None = None
    """Writes calls for templates that have no calls. Without it, the most common format is used."""
    call_ids: Literal["any", "nine", "function"] = "any"
    """`nine`: exactly nine letters and digits. `function`: `functions.NAME:COUNT`, counted over the conversation."""


class ToolFormat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A format of tool calls. `openers` begin a call anywhere, `leading` only at the beginning of an answer."""

    about: str  # how it looks, and which families write it
    name: str
    aliases: tuple[str, ...] = ()
    openers: tuple[str, ...] = ()
    leading: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()  # behind a call, and dropped with it
    signs: tuple[tuple[str, ...], ...] = ()
    """A template that contains all signs of a group uses this format; in the table, one with its first opener if no
    signs are told."""
    # Model architectures that write this format although their templates do not show it.
    architectures: frozenset[str] = frozenset()
    priority: int = 40  # if several formats match a template, the highest wins
    channels: Channels | None = None  # the format structures the whole answer
    stops: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()  # markup around calls without a meaning of its own
    further_markers: tuple[str, ...] = ()  # markers inside a call
    apart: tuple[str, ...] = ()  # what free text must not contain, as it must not contain `openers`
    history: History = History()

    @property
    def markers(self) -> tuple[str, ...]:
        """Strings that must survive detokenization, even if they are special tokens."""
        channels = self.channels.markers if self.channels else ()
        return (*self.openers, *self.leading, *self.closers, *self.dropped, *self.further_markers, *channels)

    def matches(self, template: str) -> bool:
        return any(all(sign in template for sign in group) for group in self.signs)

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        """Read the call after an opener, which is already taken. Raises `Malformed` where it stops being a call, and in
        a format whose message headers announce calls, so that calls have no openers."""
        raise Malformed
        yield

    def lark(self, grammar: Grammar) -> str:
        """The source of a grammar that admits exactly this format's calls of its tools."""
        raise NotImplementedError

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        """Lark source in llguidance's dialect that admits exactly this format's calls of these tools."""
        openers = (*self.openers, *self.apart)
        return self.lark(Grammar(special, openers, self.leading, tools, required=required, parallel=parallel))

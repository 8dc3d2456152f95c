"""What a format of tool calls is: how calls are written, read, recognised, and enforced."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pippin.core.conversation import Tool
from pippin.output.channels import Channels
from pippin.output.stream import Malformed, Reading, Source, Writer

SpecialToken = Callable[[str], "int | bool | None"]
"""The id of a string that is one special token of the model's tokenizer; None or False for other strings."""


Write = Callable[[str, dict[str, Any]], str]
"""A call's text, from its name and its arguments."""


def write_json_tags(name: str, arguments: dict[str, Any]) -> str:
    """The commonest format; its models understand it without having seen it in their template."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


@dataclass(frozen=True, kw_only=True)
class History:
    """How earlier calls and their results are handed to the chat template."""

    arguments: Literal["object", "json"] = "object"
    write: Write | None = None
    """Writes calls for templates that do not. Without it, the commonest format stands in for this one."""
    result_role: str = "tool"
    result_content: Literal["text", "object"] = "text"
    call_ids: Literal["any", "nine", "function"] = "any"
    """`nine`: exactly nine letters and digits. `function`: `functions.NAME:COUNT`, counted over the conversation."""


@dataclass
class Calls:
    """What a reader of calls works with: the text, where calls go, and the tools on offer."""

    source: Source
    writer: Writer
    tools: tuple[Tool, ...]

    def schema(self, name: str) -> dict[str, Any] | None:
        """The JSON schema of a tool's parameters; None for a tool that nobody offered."""
        for tool in self.tools:
            if tool.name == name:
                return tool.parameters or {}
        return None


@dataclass(frozen=True, kw_only=True)
class ToolFormat(ABC):
    """A format of tool calls. `openers` begin a call anywhere, `leading` only where an answer begins."""

    name: str
    aliases: tuple[str, ...] = ()
    openers: tuple[str, ...] = ()
    leading: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()  # swallowed after a call that broke off
    signs: tuple[tuple[str, ...], ...] = ()  # a template that holds all of any one group uses this format
    architectures: frozenset[str] = (
        frozenset()
    )  # that write it though their template, of any text, does not say so
    priority: int = 0  # of two formats that match a template, the higher one wins
    channels: Channels | None = None  # the format structures the whole answer
    stops: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()  # markup around calls that means nothing by itself
    further_markers: tuple[str, ...] = ()  # inside a call
    history: History = History()

    @property
    def markers(self) -> tuple[str, ...]:
        """Strings that must survive detokenization, even where they are special tokens."""
        channels = self.channels.markers if self.channels else ()
        return (*self.openers, *self.leading, *self.closers, *self.dropped, *self.further_markers, *channels)

    def matches(self, template: str) -> bool:
        return any(all(sign in template for sign in group) for group in self.signs)

    @abstractmethod
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        """Read what follows an opener, which is taken. Raises `Malformed` where it is no call (any more)."""

    @abstractmethod
    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        """Lark source in llguidance's dialect that admits exactly this format's calls of these tools."""


class HeaderCalls(ToolFormat):
    """Headers say what is a call, so that there is no opener to read from."""

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        raise Malformed
        yield

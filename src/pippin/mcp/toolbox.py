"""The tools that Pippin has to offer as an MCP server, in no library's words: what they are, a call, its answer."""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import Struct

Scope = MutableMapping[str, Any]
"""Of the HTTP request in which a message came, as ASGI has it."""

Tell = Callable[[str], Awaitable[None]]
"""Tells the client in a few words how far its call has come; does nothing where it did not ask."""


class ServedTool(Struct, frozen=True, kw_only=True):
    """A tool as clients are told of it. `arguments` and `result` are JSON schemas of objects."""

    name: str
    title: str
    description: str
    arguments: dict[str, Any]
    result: dict[str, Any] | None = None
    read_only: bool = True
    destructive: bool = False


class Sound(Struct, frozen=True, kw_only=True):
    data: bytes
    media: str  # its type


class ToolAnswer(Struct, frozen=True, kw_only=True):
    """What a call came to. `text` is for models; `structured` is what the tool's `result` describes."""

    text: str
    structured: dict[str, Any] | None = None
    sound: Sound | None = None
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCall:
    """A call of a tool. `id` is the client's own number of it, which is unique within a session."""

    tool: str
    arguments: dict[str, Any]
    id: int | str
    scope: Scope
    tell: Tell


class Toolbox(Protocol):
    """The tools, and the calling of them."""

    async def tools(self, scope: Scope) -> Sequence[ServedTool]:
        """The tools that this caller is shown."""
        ...

    def schema_of(self, name: str) -> dict[str, Any] | None:
        """The schema of a tool's arguments; None where there is no such tool."""
        ...

    async def call(self, call: ServedCall) -> ToolAnswer:
        """Call a tool that there is. All that goes wrong is in the answer."""
        ...

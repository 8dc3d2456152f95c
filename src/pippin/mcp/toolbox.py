"""The tools that Pippin serves over MCP, independent of any library: their descriptions, calls and answers."""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import Struct

Scope = MutableMapping[str, Any]
"""The ASGI scope of the HTTP request that carried a message."""

Tell = Callable[[str], Awaitable[None]]
"""Reports a call's progress to the client in a few words; does nothing if the client did not ask for it."""


class ServedTool(Struct, frozen=True, kw_only=True):
    """A tool as shown to clients. `arguments` and `result` are JSON schemas of objects."""

    name: str
    title: str
    description: str
    arguments: dict[str, Any]
    result: dict[str, Any] | None = None
    read_only: bool = True
    destructive: bool = False


class Sound(Struct, frozen=True, kw_only=True):
    data: bytes
    media: str  # its media type


class ToolAnswer(Struct, frozen=True, kw_only=True):
    """The outcome of a call. `text` is for models; `structured` conforms to the tool's `result` schema."""

    text: str
    structured: dict[str, Any] | None = None
    sound: Sound | None = None
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCall:
    """A call of a tool. `id` is the client's id of the call, unique within a session."""

    tool: str
    arguments: dict[str, Any]
    id: int | str
    scope: Scope
    tell: Tell


class Toolbox(Protocol):
    """Lists the tools and calls them."""

    async def tools(self, scope: Scope) -> Sequence[ServedTool]:
        """The tools to show to this caller."""
        ...

    def schema_of(self, name: str) -> dict[str, Any] | None:
        """The schema of a tool's arguments; None if there is no such tool."""
        ...

    async def call(self, call: ServedCall) -> ToolAnswer:
        """Call an existing tool. Errors are reported in the answer."""
        ...

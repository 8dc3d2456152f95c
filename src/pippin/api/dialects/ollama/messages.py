"""Conversations and tools in the form of `/api/chat`, and how they are decoded.

In Ollama's messages, a tool result names the tool (`tool_name`) and not the call. Calls and results are therefore
matched here: in order, and by name if the result has one.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from pippin.api.dialects.shared.fields import invalid, unsupported
from pippin.api.dialects.shared.media import source_of_base64, source_of_url
from pippin.api.dialects.shared.tools import FunctionDefinition, ToolName, offer
from pippin.core.conversation import Image, Message, Part, Reasoning, Text, Tool, ToolCall, ToolResult

MAX_MESSAGES: Final = 16_384
MAX_TOOLS: Final = 512
MAX_IMAGES: Final = 256
_NAME: Final = ToolName("A-Za-z0-9_.:/-", 128, "letters, digits and any of `_.:/-`")

Images = Annotated[tuple[str, ...], Meta(max_length=MAX_IMAGES)]


class CalledFunction(Struct, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    arguments: dict[str, Any] | str | None = None
    index: int | None = None
    description: str | None = None


class GivenCall(Struct, kw_only=True):
    function: CalledFunction
    id: str | None = None
    type: str | None = None


class OllamaMessage(Struct, kw_only=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Images | None = None
    tool_calls: tuple[GivenCall, ...] | None = None
    tool_name: str | None = None
    name: str | None = None
    tool_call_id: str | None = None


class GivenTool(Struct, kw_only=True):
    function: FunctionDefinition
    type: str = "function"


class _Calls:
    """The calls of a conversation that have no result yet, in order."""

    def __init__(self) -> None:
        self._made = 0
        self._open: list[tuple[str, str]] = []  # id and name

    def call(self, given: GivenCall) -> ToolCall:
        name = given.function.name
        call_id = given.id or f"call_{self._made}"
        self._made += 1
        self._open.append((call_id, name))
        arguments = given.function.arguments
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments or {}).decode()
        return ToolCall(call_id, name, arguments)

    def answered(self, id: str | None, name: str | None) -> tuple[str, str | None]:
        """The id and name of the call that a result belongs to."""
        fits = [each for each in self._open if (each[0] == id if id else name in (None, each[1]))]
        if not fits:
            return id or name or f"call_{self._made}", name
        self._open.remove(fits[0])
        return fits[0]


def messages_of(given: tuple[OllamaMessage, ...]) -> tuple[Message, ...]:
    """Raises `ServerError` naming the message that can't be read."""
    if len(given) > MAX_MESSAGES:
        raise invalid("messages", f"must not hold more than {MAX_MESSAGES} messages.")
    calls = _Calls()
    return tuple(_message_of(message, calls, f"messages[{place}]") for place, message in enumerate(given))


def _message_of(message: OllamaMessage, calls: _Calls, at: str) -> Message:
    said = (Text(message.content),) if message.content else ()
    shown = images_of(message.images, f"{at}.images")
    if message.role == "tool":
        call_id, name = calls.answered(message.tool_call_id, message.tool_name or message.name)
        return Message("tool", (ToolResult(call_id, said + shown, name),))
    if message.role != "user" and shown:
        raise unsupported(f"{at}.images", "images belong to the user's messages and to tools' results.")
    parts: list[Part] = []
    if message.role == "assistant":
        if message.thinking:
            parts.append(Reasoning(message.thinking))
        return Message(
            "assistant", (*parts, *said, *(calls.call(given) for given in message.tool_calls or ()))
        )
    return Message(message.role, said + shown)


def images_of(given: Images | None, at: str) -> tuple[Image, ...]:
    """Images as base64, which is Ollama's form, or as `data:` URLs. Raises `ServerError`."""
    return tuple(
        Image(
            source_of_url(text, f"{at}[{place}]")
            if text[:5].lower() == "data:"
            else source_of_base64(text, f"{at}[{place}]"),
            field=f"{at}[{place}]",
        )
        for place, text in enumerate(given or ())
    )


def tools_of(given: tuple[GivenTool, ...] | None) -> tuple[Tool, ...]:
    """Raises `ServerError` naming the tool that can't be offered."""
    tools: dict[str, Tool] = {}
    if given is not None and len(given) > MAX_TOOLS:
        raise invalid("tools", f"must not hold more than {MAX_TOOLS} tools.")
    for place, tool in enumerate(given or ()):
        function = tool.function
        if tool.type != "function":
            raise unsupported(f"tools[{place}].type", 'only tools of type "function" are supported.')
        if function.parameters is not None and function.parameters.get("properties", {}) is None:
            function.parameters |= {"properties": {}}
        offer(function, tools, f"tools[{place}].function", _NAME)
    return tuple(tools.values())

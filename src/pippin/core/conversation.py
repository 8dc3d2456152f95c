"""A conversation as values: messages, their parts, and the tools that are offered with them."""

from typing import Any, Literal

from msgspec import Struct

Role = Literal["system", "developer", "user", "assistant", "tool"]
Detail = Literal["auto", "low", "high"]


class Url(Struct, frozen=True, tag=True):
    """Media that the API server has still to fetch. Never crosses to a worker."""

    url: str


class Inline(Struct, frozen=True, tag=True):
    """Media as the client's own bytes, not decoded yet."""

    data: bytes
    mime: str | None = None


MediaSource = Url | Inline


class Text(Struct, frozen=True, tag=True):
    text: str


class Image(Struct, frozen=True, tag=True, omit_defaults=True):
    """Of images, sounds and videos, `field` is where the client wrote them, as refusals name it
    (`input[0].content[1]`). Empty: at their place among the messages.
    """

    source: MediaSource
    detail: Detail = "auto"
    min_pixels: int | None = None
    max_pixels: int | None = None
    resize: tuple[int, int] | None = None  # height, width in pixels
    field: str = ""


class Audio(Struct, frozen=True, tag=True, omit_defaults=True):
    source: MediaSource
    format: str | None = None
    field: str = ""


class Video(Struct, frozen=True, tag=True, omit_defaults=True):
    source: MediaSource
    fps: float | None = None
    max_frames: int | None = None
    field: str = ""


class Reasoning(Struct, frozen=True, tag=True, omit_defaults=True):
    """The reasoning of the assistant in an earlier turn."""

    text: str
    signature: str | None = None


class ToolCall(Struct, frozen=True, tag=True):
    """A call that an assistant made. `arguments` is the JSON text as it was produced."""

    id: str
    name: str
    arguments: str


class ToolResult(Struct, frozen=True, tag=True, omit_defaults=True):
    call_id: str
    parts: "tuple[Text | Image, ...]" = ()
    name: str | None = None
    is_error: bool = False


Part = Text | Image | Audio | Video | Reasoning | ToolCall | ToolResult


class Message(Struct, frozen=True, omit_defaults=True):
    """One turn. Parts keep the order in which the client gave them.

    `pin` asks the prefix cache to keep the prompt up to the end of this message
    (Anthropic's `cache_control`).
    """

    role: Role
    parts: tuple[Part, ...] = ()
    name: str | None = None
    pin: bool = False


class Tool(Struct, frozen=True, omit_defaults=True):
    """A function that the model may call. `parameters` is a JSON schema of an object."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class Toolset(Struct, frozen=True, omit_defaults=True):
    """Tools of an MCP server that the operator has set up, which Pippin itself calls. `*` is every server."""

    server: str
    allowed: tuple[str, ...] = ()  # names; all where empty


class ToolChoice(Struct, frozen=True, omit_defaults=True):
    """Which tools may, must or must not be called.

    `auto`: the model decides; `none`: no call, no tool markup; `required`: at least one call of any
    tool in `names` (all of them where `names` is empty). One name with `required` is a named choice.
    `names` with `auto` narrows what may be called.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()

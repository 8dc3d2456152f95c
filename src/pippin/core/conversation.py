"""A conversation as values: messages, their parts, and the tools offered with them."""

from typing import Any, Final, Literal

from msgspec import Struct

from pippin.core.errors import ErrorReport

Role = Literal["system", "developer", "user", "assistant", "tool"]
Detail = Literal["auto", "low", "high"]


class Url(Struct, frozen=True, tag=True):
    """Media that the API server has yet to fetch. Never crosses to a worker."""

    url: str


class Inline(Struct, frozen=True, tag=True):
    """Media as the client's bytes, not decoded yet."""

    data: bytes
    mime: str | None = None


class Missing(Struct, frozen=True, tag=True):
    """Media that the API server could not get, and the refusal that says why."""

    report: ErrorReport


MediaSource = Url | Inline | Missing


class Text(Struct, frozen=True, tag=True, omit_defaults=True):
    """What somebody says, or a line of this server's about it.

    Texts of a message follow each other as the chat template writes them, often without anything between them; one that
    is `apart` begins and ends a line.
    """

    text: str
    apart: bool = False


class Image(Struct, frozen=True, tag=True, omit_defaults=True):
    """An image in a message.

    In attachments, `field` is the path at which the client wrote them, for refusals
    (`input[0].content[1]`). An empty `field` means their place among the messages.
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


class Document(Struct, frozen=True, tag=True, omit_defaults=True):
    """A PDF. Other files are text by the time that they are parts, or are refused."""

    source: MediaSource
    name: str = ""
    field: str = ""


MediaPart = Image | Audio | Video
Attachment = MediaPart | Document


class Reasoning(Struct, frozen=True, tag=True, omit_defaults=True):
    """The assistant's reasoning in an earlier turn."""

    text: str
    signature: str | None = None


class ToolCall(Struct, frozen=True, tag=True):
    """A call made by the assistant. `arguments` is the JSON text as generated."""

    id: str
    name: str
    arguments: str


class ToolResult(Struct, frozen=True, tag=True, omit_defaults=True):
    call_id: str
    parts: tuple[Text | Attachment, ...] = ()
    name: str | None = None
    is_error: bool = False


Part = Text | Attachment | Reasoning | ToolCall | ToolResult


class Message(Struct, frozen=True, omit_defaults=True):
    """One turn. Parts keep the client's order.

    `pin` asks the prefix cache to keep the prompt up to the end of this message (Anthropic's `cache_control`).
    """

    role: Role
    parts: tuple[Part, ...] = ()
    name: str | None = None
    pin: bool = False


def seamed(first: tuple[Part, ...], second: tuple[Part, ...], seam: str) -> tuple[Part, ...]:
    """Parts in a row; texts that meet become one, with `seam` between them."""
    match first, second:
        case (*before, Text(end) as ends), (Text(begin) as begins, *after):
            return (*before, Text(f"{end}{seam}{begin}", apart=ends.apart or begins.apart), *after)
        case _:
            return (*first, *second)


class Tool(Struct, frozen=True, omit_defaults=True):
    """A function that the model may call. `parameters` is a JSON schema of an object."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class Toolset(Struct, frozen=True, omit_defaults=True):
    """Tools of an MCP server that the operator configured; Pippin calls them itself. `*` means every server."""

    server: str
    allowed: tuple[str, ...] = ()  # names; empty: all


WEB_SEARCH: Final = "web_search"
"""The name of the tool with which Pippin searches the web, and of the server that it stands for."""


class WebSearch(Struct, frozen=True, omit_defaults=True):
    """A wish that Pippin searches the web for the model."""

    allowed: tuple[str, ...] = ()  # domains that pages may be of, with theirs below them; empty: any
    blocked: tuple[str, ...] = ()
    results: int = 5  # pages of a search at most
    location: str = ""  # where the user is, about


class FoundPage(Struct, frozen=True):
    """A page that a search has found. Lists of these are the results of searches, as JSON."""

    url: str
    title: str
    text: str


class ToolChoice(Struct, frozen=True, omit_defaults=True):
    """Which tools may, must or must not be called.

    `auto`: the model decides; `none`: no calls and no tool markup; `required`: at least one call of a tool in `names`
    (of any tool if `names` is empty). `required` with one name is a named choice. `names` with `auto` restricts what
    may be called.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()

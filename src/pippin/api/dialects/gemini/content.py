"""Reads the contents of Gemini's API: turns, and their parts."""

import base64
import mimetypes
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Struct

from pippin.api.dialects.shared.engine_fields import FramesPerSecond
from pippin.api.dialects.shared.fields import Unused, invalid, refused, unsupported
from pippin.api.dialects.shared.media import document_of, placed, source_of_base64, source_of_url
from pippin.api.dialects.shared.sealed_text import seal, unseal
from pippin.api.dialects.shared.tools import CallsInOrder
from pippin.core.conversation import (
    Attachment,
    Audio,
    Detail,
    Image,
    MediaSource,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Video,
)

WHOLE: Final = refused("media are read whole; send the piece that is meant.")
AT_ONCE: Final = refused("calls and their results are sent whole, when they are complete.")
ELSEWHERE: Final = (
    *("executable_code", "code_execution_result", "audio_transcription", "tool_call", "tool_response"),
)
"""Parts that Google's own tools make."""
NO_FILES: Final = "this server keeps no files; send the bytes in `inlineData`, or an http(s) address."
RESOLUTION: Final = "MEDIA_RESOLUTION_"
DETAILS: Final[dict[str, Detail]] = {
    "UNSPECIFIED": "auto",
    "LOW": "low",
    "MEDIUM": "auto",
    "HIGH": "high",
    "ULTRA_HIGH": "high",
}


class PartResolution(Struct, kw_only=True, rename="camel"):
    level: str | None = None
    num_tokens: Annotated[Any, refused("name a `level` instead.")] = None


class VideoMetadata(Struct, kw_only=True, rename="camel"):
    fps: FramesPerSecond | None = None
    start_offset: Annotated[Any, WHOLE] = None
    end_offset: Annotated[Any, WHOLE] = None
    content_layers: Annotated[Any, WHOLE] = None


class MediaData(Struct, kw_only=True, rename="camel"):
    """The bytes of a medium as base64, or its address."""

    data: str = ""
    file_uri: str = ""
    mime_type: str = ""
    display_name: str | None = None


class MediaPart(Struct, kw_only=True, rename="camel"):
    inline_data: MediaData | None = None
    file_data: MediaData | None = None
    media_resolution: PartResolution | None = None
    video_metadata: VideoMetadata | None = None
    media_processing: Literal["MEDIA_PROCESSING_UNSPECIFIED", "STATIC"] | None = None
    document_metadata: Annotated[Any, WHOLE] = None
    spreadsheet_metadata: Annotated[Any, WHOLE] = None
    audio_metadata: Annotated[Any, WHOLE] = None


class FunctionCall(Struct, kw_only=True, rename="camel"):
    name: str
    args: dict[str, Any] | None = None
    id: str | None = None
    partial_args: Annotated[Any, AT_ONCE] = None
    will_continue: Annotated[Any, AT_ONCE] = None


class FunctionResponse(Struct, kw_only=True, rename="camel"):
    name: str | None = None
    response: dict[str, Any] | None = None
    id: str | None = None
    parts: tuple[MediaPart, ...] | None = None
    will_continue: Annotated[Any, AT_ONCE] = None
    scheduling: Unused = None


class ContentPart(MediaPart, kw_only=True, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None
    executable_code: Any = None
    code_execution_result: Any = None
    audio_transcription: Any = None
    tool_call: Any = None
    tool_response: Any = None
    part_metadata: Unused = None
    speech_metadata: Annotated[Any, refused("answers are text; leave it out.")] = None


class Content(Struct, kw_only=True, rename="camel"):
    """One turn. A single part may stand without its list, as Google's own parser allows."""

    parts: tuple[ContentPart, ...] | ContentPart | None = None
    role: Literal["user", "model", "function", "tool", "system", ""] | None = None


Contents = tuple[Content, ...] | Content


def detail_of(level: str | None, at: str) -> Detail:
    """The detail of images that Google's word for a resolution means. Raises `ServerError` for another word."""
    found = DETAILS.get((level or "UNSPECIFIED").upper().removeprefix(RESOLUTION))
    if found is None:
        raise invalid(at, f"must be one of {', '.join(f'`{RESOLUTION}{word}`' for word in DETAILS)}.")
    return found


def signature_of(thought: str) -> str:
    """The `thoughtSignature` of a part that follows this thought: base64, as the field's type demands."""
    return base64.b64encode(seal(thought).encode()).decode()


def _standard(text: str) -> str:
    """Base64 in its standard alphabet with padding: in JSON of protocol buffers it may have the other, and none."""
    text = text.replace("-", "+").replace("_", "/").rstrip("=")
    return text + "=" * (-len(text) % 4)


class ContentsReader:
    """Turns contents into messages.

    In this API results of functions stand in turns of the user; in Pippin they are messages of their own. Clients keep
    each piece of a stream as a turn of the model, so its turns and texts in a row are one.
    """

    def __init__(self, detail: Detail = "auto") -> None:
        """`detail` is that of images which name none."""
        self.messages: list[Message] = []
        self.skipped: list[str] = []  # kinds of parts that were left out
        self._calls = CallsInOrder()
        self._detail = detail

    def system(self, given: str | Content, at: str) -> None:
        content = Content(parts=ContentPart(text=given)) if isinstance(given, str) else given
        for number, (place, part) in enumerate(_parts_of(content, at)):
            if part.text is None:
                raise invalid(place, "must be text.")
            if part.text:
                self._say("system", [Text(part.text)], "" if number else "\n")

    def read(self, contents: Contents, at: str = "contents") -> None:
        """Raises `ServerError` naming the part that can't be read."""
        for place, content in enumerate((contents,) if isinstance(contents, Content) else contents):
            where = f"{at}[{place}]"
            if content.role == "system":
                self.system(content, where)
                continue
            for number, (path, part) in enumerate(_parts_of(content, where)):
                if content.role == "model":
                    self._say("assistant", self._of_model(part, path))
                elif part.function_response is not None:
                    result = self._result(part.function_response, f"{path}.functionResponse")
                    self.messages.append(Message("tool", (result,)))
                else:
                    self._say("user", self._plain(part, path), "" if number else "\n")

    def _of_model(self, part: ContentPart, at: str) -> list[Part]:
        if part.thought and part.function_call is None:
            return [Reasoning(part.text)] if part.text else []
        said: list[Part] = []
        if (call := part.function_call) is not None:
            arguments = msgspec.json.encode(call.args or {}).decode()
            said.append(ToolCall(self._calls.made(call.id, call.name), call.name, arguments))
        else:
            said += self._plain(part, at)
        try:
            thought = unseal(base64.b64decode(_standard(part.thought_signature or "")).decode())
        except ValueError:  # the signature of another server
            thought = None
        last = self.messages[-1] if self.messages else Message("user")
        # The thought itself may stand before, where the client keeps what it was shown.
        thinks = last.role == "assistant" and isinstance(last.parts[-1], Reasoning)
        return [Reasoning(thought), *said] if said and thought and not thinks else said

    def _result(self, given: FunctionResponse, at: str) -> ToolResult:
        response = given.response or {}
        call_id, name = self._calls.answered(given.id, given.name)
        match response:
            # Where it has nothing else. `result` is the word of Google's own tool runners.
            case {"output": str(text)} | {"result": str(text)} if len(response) == 1:
                told = text
            case _:
                told = msgspec.json.encode(response).decode()
        parts: list[Text | Attachment] = [Text(told)] if response else []
        for place, part in enumerate(given.parts or ()):
            parts += self._medium(part, f"{at}.parts[{place}]")
        return ToolResult(call_id, tuple(parts), name, is_error=bool(response.get("error")))

    def _plain(self, part: ContentPart, at: str) -> list[Text | Attachment]:
        match part:
            case ContentPart(text=str(text)):
                return [Text(text)] if text else []
            case ContentPart(function_call=None, function_response=None):
                elsewhere = [name for name in ELSEWHERE if getattr(part, name) is not None]
                self.skipped += elsewhere
                # A signature may come alone, after the last text.
                return [] if elsewhere or part.thought_signature else self._medium(part, at)
            case _:
                raise invalid(
                    at, "must stand in a turn of the other role: the model calls, the user answers."
                )

    def _medium(self, part: MediaPart, at: str) -> list[Text | Attachment]:
        clip, resolution = part.video_metadata or VideoMetadata(), part.media_resolution or PartResolution()
        detail = detail_of(resolution.level, f"{at}.mediaResolution.level")
        given, field = part.inline_data or part.file_data, f"{at}.inlineData.data"
        if given is None:
            raise invalid(at, "must hold text, a medium, or a call or response of a function.")
        mime = given.mime_type or mimetypes.guess_type(given.file_uri.partition("?")[0])[0] or ""
        mime = mime.partition(";")[0].strip().lower()
        source: MediaSource
        if part.inline_data is not None:
            source = source_of_base64(_standard(given.data), field, mime)
        else:
            field = f"{at}.fileData.fileUri"
            if given.file_uri.startswith(("gs:", "files/")) or "generativelanguage.google" in given.file_uri:
                raise unsupported(field, NO_FILES)
            if not mime:
                raise invalid(f"{at}.fileData.mimeType", "is required where the address does not tell it.")
            source = source_of_url(given.file_uri, field)
        match mime.partition("/")[0]:
            case "image":
                return [Image(source, self._detail if detail == "auto" else detail, field=at)]
            case "audio":
                return [Audio(source, field=at)]
            case "video":
                return [Video(source, fps=clip.fps, field=at)]
            case _:
                return [placed(document_of(source, given.display_name or "", field), at)]

    def _say(self, role: Role, parts: Iterable[Part], seam: str = "") -> None:
        """Append to the turn of this role, or begin it. With a `seam`, a text goes on in the one before it."""
        if not (parts := list(parts)):
            return
        if not self.messages or self.messages[-1].role != role:
            self.messages.append(Message(role))
        said = list(self.messages[-1].parts)
        for part in parts:
            match said[-1:], part:
                case [Text(before)], Text(text) if seam or role == "assistant":
                    said[-1] = Text(before + seam + text)
                case [Reasoning(before)], Reasoning(text):
                    said[-1] = Reasoning(before + text)
                case _:
                    said.append(part)
        self.messages[-1] = Message(role, tuple(said))


def _parts_of(content: Content, at: str) -> Iterator[tuple[str, ContentPart]]:
    """The parts of a turn, with their places."""
    given = content.parts or ()
    for place, part in enumerate((given,) if isinstance(given, ContentPart) else given):
        yield f"{at}.parts[{place}]", part

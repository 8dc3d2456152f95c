"""Reads the images, sounds and videos of a conversation, and gives them the media options of their request."""

import base64
from collections.abc import Sequence
from typing import Final, Literal

from msgspec.structs import replace

from pippin.api.dialects.shared.engine_fields import EngineFields, resize_of
from pippin.api.dialects.shared.fields import invalid
from pippin.core.conversation import Image, Inline, MediaSource, Message, Part, ToolResult, Url, Video

GivenDetail = Literal["auto", "low", "high", "original"]
MAX_URL = 8192
SLICE: Final = 1 << 20  # characters


def source_of_url(url: str, param: str) -> MediaSource:
    """The bytes of a `data:` address, or the address itself for the server to fetch or to refuse."""
    if url[:5].lower() == "data:":
        header, comma, payload = url[5:].partition(",")
        if not comma or not header.lower().endswith(";base64"):
            raise invalid(param, "must be an http(s) address, or `data:` with a media type and `;base64,`.")
        mime = header[: -len(";base64")].split(";")[0].strip().lower()
        return source_of_base64(payload, param, mime or None)
    if not url or len(url) > MAX_URL:
        raise invalid(param, f"must be an address of 1 to {MAX_URL} characters.")
    return Url(url)


def image_of(url: str, detail: GivenDetail | None, param: str) -> Image:
    """The image at an address. `original` is served as `high`, the finest detail that a processor knows."""
    return Image(source_of_url(url, param), "high" if detail == "original" else detail or "auto")


def source_of_base64(payload: str, param: str, mime: str | None = None) -> Inline:
    try:
        data = decoded_base64(payload)
    except ValueError:
        raise invalid(param, "must be valid base64.") from None
    if not data:
        raise invalid(param, "must not be empty.")
    return Inline(data, mime)


def decoded_base64(text: str) -> bytes:
    """Without its blanks; in slices, between which others get their turn. Raises `ValueError`."""
    pieces: list[bytes] = []
    rest, ended = "", False
    for start in range(0, len(text), SLICE):
        part = rest + "".join(text[start : start + SLICE].split())
        if part and ended:
            raise ValueError("there is more after the end")
        whole = len(part) - len(part) % 4
        ended = part[:whole].endswith("=")
        pieces.append(base64.b64decode(part[:whole], validate=True))
        rest = part[whole:]
    pieces.append(base64.b64decode(rest, validate=True))
    return b"".join(pieces)


def with_media_options(messages: Sequence[Message], fields: EngineFields) -> tuple[Message, ...]:
    resize = resize_of(fields)
    for_images = fields.min_pixels is not None or fields.max_pixels is not None or resize is not None
    for_videos = fields.video_fps is not None or fields.video_max_frames is not None
    if not (for_images or for_videos):
        return tuple(messages)

    def image(given: Image) -> Image:
        return replace(given, min_pixels=fields.min_pixels, max_pixels=fields.max_pixels, resize=resize)

    def part(given: Part) -> Part:
        match given:
            case Image():
                return image(given)
            case Video():  # a video may have its own
                return replace(
                    given,
                    fps=given.fps or fields.video_fps,
                    max_frames=given.max_frames or fields.video_max_frames,
                )
            case ToolResult(parts=parts):
                return replace(given, parts=tuple(image(p) if isinstance(p, Image) else p for p in parts))
            case _:
                return given

    return tuple(replace(message, parts=tuple(map(part, message.parts))) for message in messages)

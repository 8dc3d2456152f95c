"""Reads the images, sounds and videos in request bodies."""

import base64
import re
from typing import Final, Literal

from msgspec.structs import replace

from pippin.api.dialects.shared.fields import invalid
from pippin.core.conversation import Audio, Image, Inline, MediaSource, Part, Url, Video

GivenDetail = Literal["auto", "low", "high", "original"]
MAX_URL = 8192
PATH: Final = re.compile(r"[^\n]{1,4096}\.[A-Za-z0-9]{2,5}")
"""A file name with an extension. Base64 has no dot."""
SLICE: Final = 1 << 20  # characters


def source_of_url(url: str, param: str) -> MediaSource:
    """The bytes of a `data:` URL, or the URL itself, which the server fetches or refuses later."""
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
    """The image at a URL. `original` is read as `high`, the finest detail that a processor knows."""
    return Image(source_of_url(url, param), "high" if detail == "original" else detail or "auto")


def placed(part: Part, field: str) -> Part:
    """The part; an image, sound or video is marked with its place in the body."""
    return replace(part, field=field) if isinstance(part, Image | Audio | Video) else part


def sound_of(text: str, format: str | None, param: str) -> Audio:
    """The sound in a string: base64, a `data:` or http(s) URL, or the path of a file.

    A string is a path if it begins with `./`, `../` or `~/`, or has a short extension, which base64 can't have.
    """
    head = text[:8].lower()
    is_address = head.startswith(("data:", "http:", "https:", "file:", "./", "../", "~/"))
    is_path = len(text) <= MAX_URL and (PATH.fullmatch(text) is not None)
    if is_address or is_path:
        return Audio(source_of_url(text, param), format)
    return Audio(source_of_base64(text, param), format)


def source_of_base64(payload: str, param: str, mime: str | None = None) -> Inline:
    try:
        data = decoded_base64(payload)
    except ValueError:
        raise invalid(param, "must be valid base64.") from None
    if not data:
        raise invalid(param, "must not be empty.")
    return Inline(data, mime)


def decoded_base64(text: str) -> bytes:
    """Decodes base64 with whitespace, in slices between which other threads may run. Raises `ValueError`."""
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

"""Reads the images, sounds and videos of a conversation, as bodies have them."""

import base64
import re
from typing import Final, Literal

from msgspec.structs import replace

from pippin.api.dialects.shared.fields import invalid
from pippin.core.conversation import Audio, Image, Inline, MediaSource, Part, Url, Video

GivenDetail = Literal["auto", "low", "high", "original"]
MAX_URL = 8192
PATH: Final = re.compile(r"[^\n]{1,4096}\.[A-Za-z0-9]{2,5}")
"""A name with an ending: a dot is no letter of base64."""
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


def placed(part: Part, field: str) -> Part:
    """The part, with where the client wrote it if it is a medium."""
    return replace(part, field=field) if isinstance(part, Image | Audio | Video) else part


def sound_of(text: str, format: str | None, param: str) -> Audio:
    """The sound that a text stands for: base64, a `data:` or http(s) address, or the path of a file.

    A path is one by its first characters (`/`, `./`, `~/`), or by a short ending, which base64 can't have.
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

"""Reads the content parts of request bodies: texts, images, sounds, videos and files."""

import base64
import re
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from pippin.api.dialects.shared.engine_fields import Frames, FramesPerSecond
from pippin.api.dialects.shared.fields import invalid, unsupported
from pippin.core.conversation import (
    Attachment,
    Audio,
    Document,
    Image,
    Inline,
    MediaSource,
    Missing,
    Part,
    Reasoning,
    Text,
    Url,
    Video,
)
from pippin.core.errors import ServerError

GivenDetail = Literal["auto", "low", "high", "original"]
MAX_URL = 8192
PATH: Final = re.compile(r"[^\n]{1,4096}\.[A-Za-z0-9]{2,5}")
"""A file name with an extension. Base64 has no dot."""
SLICE: Final = 1 << 20  # characters
PDF: Final = "application/pdf"
Placed = TypeVar("Placed", bound=Part)
NO_TEXT: Final = re.compile(r"[\x00-\x07\x0e-\x19\x1c-\x1f]")
"""What no text has, though it is valid UTF-8: bytes of other files."""


class FileContent(Struct, kw_only=True):
    """A file as OpenAI's APIs write it."""

    file_data: str | None = None  # base64, or a `data:` URL of it
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None


class GivenUrl(Struct, kw_only=True):
    url: str


class ImageUrl(GivenUrl, kw_only=True):
    detail: GivenDetail | None = None


class GivenAudio(Struct, kw_only=True):
    data: str
    format: Annotated[str, Meta(min_length=1, max_length=16)] | None = None


def too_large(param: str, most_bytes: int) -> ServerError:
    message = f"{param} is larger than {most_bytes / 2**20:g} MiB; send a smaller one."
    return ServerError("too_large", message, param)


def source_of_url(given: GivenUrl | str, param: str) -> MediaSource:
    """The bytes of a `data:` URL, or the URL itself, which the server fetches or refuses later."""
    url = given if isinstance(given, str) else given.url
    if url[:5].lower() == "data:":
        header, comma, payload = url[5:].partition(",")
        if not comma or not header.lower().endswith(";base64"):
            raise invalid(param, "must be an http(s) address, or `data:` with a media type and `;base64,`.")
        mime = header[: -len(";base64")].split(";")[0].strip().lower()
        return source_of_base64(payload, param, mime or None)
    if not url or len(url) > MAX_URL:
        raise invalid(param, f"must be an address of 1 to {MAX_URL} characters.")
    return Url(url)


def source_of_data(text: str, param: str) -> MediaSource:
    """Bytes as base64, or as a `data:` URL of it."""
    return (source_of_url if text[:5].lower() == "data:" else source_of_base64)(text, param)


def image_of(url: ImageUrl | str, detail: GivenDetail | None, param: str) -> Image:
    """The image at a URL. `original` is read as `high`, the finest detail that a processor knows."""
    if isinstance(url, ImageUrl):
        detail = url.detail or detail
    return Image(source_of_url(url, param), "high" if detail == "original" else detail or "auto")


def placed(part: Placed, field: str) -> Placed:
    """The part; an attachment is marked with its place in the body."""
    return replace(part, field=field) if isinstance(part, Attachment) else part


def file_of(file: FileContent, param: str) -> Text | Document:
    """A file of text, or a document. Raises `ServerError`."""
    name = file.filename or ""
    if file.file_data is not None:
        param = f"{param}.file_data"
        return document_of(source_of_data(file.file_data, param), name, param)
    if file.file_url is not None:
        return document_of(source_of_url(file.file_url, f"{param}.file_url"), name, f"{param}.file_url")
    if file.file_id is not None:
        raise unsupported(
            f"{param}.file_id", "this server keeps no files for messages; send it in `file_data`."
        )
    raise invalid(f"{param}.file_data", "is required.")


def document_of(source: MediaSource, name: str, param: str, heading: str = "") -> Text | Document:
    """A document that is to be fetched, a PDF, or the text of a file under its heading or else its name.

    Any other file is missing: whether that refuses the request depends on its place in the conversation.
    """
    match source:
        case Inline(data, mime) if mime != PDF and not data[:1024].lstrip().startswith(b"%PDF-"):
            heading = heading or (f"{name}:" if name else "")
            try:
                text = data.decode("utf-8-sig")
            except UnicodeDecodeError:
                text = "\0"
            if NO_TEXT.search(text):
                refusal = unsupported(
                    param, "only PDF and UTF-8 text can be read; send the text of other files."
                )
                return Document(Missing(refusal.report), name)
            return Text(f"{heading}\n{text}" if heading else text, apart=True)
        case _:
            return Document(source, name)


def sound_of(given: GivenAudio | str, param: str) -> Audio:
    """The sound in a string: base64, a `data:` or http(s) URL, or the path of a file.

    A string is a path if it begins with `./`, `../` or `~/`, or has a short extension, which base64 can't have.
    """
    text, param = (given, param) if isinstance(given, str) else (given.data, f"{param}.data")
    kind = None if isinstance(given, str) else given.format
    head = text[:8].lower()
    is_address = head.startswith(("data:", "http:", "https:", "file:", "./", "../", "~/"))
    is_path = len(text) <= MAX_URL and (PATH.fullmatch(text) is not None)
    return Audio((source_of_url if is_address or is_path else source_of_base64)(text, param), kind)


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


class Marked(Struct, kw_only=True):
    """A content part. Both markers ask the prefix cache to keep the prompt up to this part."""

    prompt_cache_breakpoint: Any = None
    cache_control: Any = None


class TextPart(Marked, tag_field="type", tag="text"):
    text: str


class InputTextPart(TextPart, tag="input_text"):
    pass


class OutputTextPart(TextPart, tag="output_text"):
    pass


class RefusalPart(Marked, tag_field="type", tag="refusal"):
    refusal: str


class ThinkingPart(Marked, tag_field="type", tag="thinking", kw_only=True):
    thinking: str | tuple[TextPart, ...]  # parts are Mistral's form
    signature: str | None = None


class ReasoningPart(Marked, tag_field="type", tag="reasoning"):
    text: str


class ImagePart(Marked, tag_field="type", tag="image_url", kw_only=True):
    image_url: ImageUrl | str
    detail: GivenDetail | None = None


class InputImagePart(Marked, tag_field="type", tag="input_image", kw_only=True):
    image_url: ImageUrl | str | None = None
    file_id: str | None = None
    detail: GivenDetail | None = None


class InputAudioPart(Marked, tag_field="type", tag="input_audio", kw_only=True):
    input_audio: GivenAudio | str


class AudioUrlPart(Marked, tag_field="type", tag="audio_url", kw_only=True):
    audio_url: GivenUrl | str


class Clip(Marked, kw_only=True):
    fps: FramesPerSecond | None = None
    max_frames: Frames | None = None


class VideoUrlPart(Clip, tag_field="type", tag="video_url", kw_only=True):
    video_url: GivenUrl | str


class VideoPart(Clip, tag_field="type", tag="video", kw_only=True):
    video: GivenUrl | str


class InputVideoPart(VideoUrlPart, tag="input_video"):
    pass


class FilePart(Marked, tag_field="type", tag="file", kw_only=True):
    file: FileContent


class InputFilePart(FileContent, tag_field="type", tag="input_file", kw_only=True):
    prompt_cache_breakpoint: Any = None  # as of the other parts
    cache_control: Any = None


ContentPart = (
    TextPart
    | InputTextPart
    | OutputTextPart
    | RefusalPart
    | ThinkingPart
    | ReasoningPart
    | ImagePart
    | InputImagePart
    | InputAudioPart
    | AudioUrlPart
    | VideoUrlPart
    | VideoPart
    | InputVideoPart
    | FilePart
    | InputFilePart
)
Content = str | tuple[ContentPart, ...] | None


def part_of(part: ContentPart, at: str) -> Part:
    match part:
        case TextPart(text=text):
            return Text(text)
        case RefusalPart(refusal=text):
            return Text(text, apart=True)
        case ThinkingPart(thinking=thought, signature=signature):
            text = thought if isinstance(thought, str) else "".join(part.text for part in thought)
            return Reasoning(text, signature)
        case ReasoningPart(text=text):
            return Reasoning(text)
        case ImagePart(image_url=address, detail=detail):
            return image_of(address, detail, f"{at}.image_url")
        case InputImagePart(image_url=address, detail=detail):
            if part.file_id is not None and address is None:
                raise unsupported(f"{at}.file_id", "give the image as `image_url`, by address or as `data:`.")
            if address is None:
                raise invalid(f"{at}.image_url", "is required.")
            return image_of(address, detail, f"{at}.image_url")
        case InputAudioPart(input_audio=audio):
            return sound_of(audio, f"{at}.input_audio")
        case AudioUrlPart(audio_url=address):
            return Audio(source_of_url(address, f"{at}.audio_url"))
        case VideoPart(video=address):
            return Video(source_of_url(address, f"{at}.video"), part.fps, part.max_frames)
        case VideoUrlPart(video_url=address):
            return Video(source_of_url(address, f"{at}.video_url"), part.fps, part.max_frames)
        case FilePart(file=file):
            return file_of(file, f"{at}.file")
        case InputFilePart():
            return file_of(part, at)

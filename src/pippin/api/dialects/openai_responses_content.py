"""Reads the content parts of Responses items."""

import base64
import binascii
from typing import Any, Literal

from msgspec import Struct

from pippin.api.dialects.fields import convert, invalid, unsupported
from pippin.api.dialects.media_source import source_of_base64, source_of_url
from pippin.core.conversation import Audio, Image, Part, Text, Video


class TextPart(Struct, kw_only=True):
    text: str


class RefusalPart(Struct, kw_only=True):
    refusal: str


class ImagePart(Struct, kw_only=True):
    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None


class AudioData(Struct, kw_only=True):
    data: str
    format: str | None = None


class AudioPart(Struct, kw_only=True):
    input_audio: AudioData


class VideoPart(Struct, kw_only=True):
    video_url: str


class FilePart(Struct, kw_only=True):
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None


def parts_of(content: str | list[dict[str, Any]], param: str) -> tuple[tuple[Part, ...], bool]:
    """The parts, and whether one of them asks for the prompt up to here to stay cached."""
    if isinstance(content, str):
        return (Text(content),), False
    parts = tuple(_part_of(part, f"{param}[{number}]") for number, part in enumerate(content))
    return parts, any(part.get("prompt_cache_breakpoint") for part in content)


def _part_of(part: dict[str, Any], param: str) -> Part:
    match part.get("type"):
        case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
            return Text(convert(part, TextPart, param).text)
        case "refusal":
            return Text(convert(part, RefusalPart, param).refusal)
        case "input_image" | "computer_screenshot":
            return _image(convert(part, ImagePart, param), param)
        case "input_audio":
            audio = convert(part, AudioPart, param).input_audio
            return Audio(source_of_base64(audio.data, f"{param}.input_audio.data"), audio.format)
        case "input_video":
            video = convert(part, VideoPart, param)
            return Video(source_of_url(video.video_url, f"{param}.video_url"))
        case "input_file":
            return _file(convert(part, FilePart, param), param)
        case str():
            raise unsupported(
                f"{param}.type", "it is not a type of content that the Responses API documents."
            )
        case _:
            raise invalid(f"{param}.type", "is required, and must be a string.")


def _image(image: ImagePart, param: str) -> Image:
    if image.image_url is None:
        if image.file_id is not None:
            raise unsupported(
                f"{param}.file_id", "this server keeps no files; send the image as `image_url`."
            )
        raise invalid(f"{param}.image_url", "is required.")
    source = source_of_url(image.image_url, f"{param}.image_url")
    return Image(source, "high" if image.detail == "original" else image.detail or "auto")


def _file(file: FilePart, param: str) -> Text:
    """A file of text, with its name as a heading. No other files can be read."""
    if file.file_data is None:
        given = "file_url" if file.file_url is not None else "file_id"
        raise unsupported(f"{param}.{given}", "send the file's text as `input_text`, or in `file_data`.")
    payload = file.file_data
    if payload.startswith("data:"):
        payload = payload.partition(",")[2]
    try:
        text = base64.b64decode("".join(payload.split()), validate=True).decode()
    except (binascii.Error, ValueError):
        raise unsupported(
            f"{param}.file_data", "only files of UTF-8 text in base64 can be read; send other files as text."
        ) from None
    return Text(f"{file.filename}:\n{text}" if file.filename else text)

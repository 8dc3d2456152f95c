"""Gives the images and videos of a conversation the media options of their request."""

from collections.abc import Sequence

from msgspec.structs import replace

from pippin.api.dialects.engine_fields import EngineFields, resize_of
from pippin.core.conversation import Image, Message, Part, ToolResult, Video


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

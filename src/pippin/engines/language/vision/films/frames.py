"""Videos for models that take pictures and no video: some of their frames in order, as mlx-vlm's server shows them."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image as PillowImage

from pippin.core.conversation import Image, Inline, Message, Video
from pippin.core.tasks import media_parts, with_attachments
from pippin.engines.language.vision.media import inline_bytes
from pippin.engines.language.vision.video import FrameRate, read_frames, sample

MOST_FRAMES = 16
"""The most frames of all videos of a request together (mlx-vlm's `resolve_video_inputs`)."""


def frame_rate(processor: Any) -> FrameRate | None:
    """The rate at which videos are shown as pictures; None for a processor that takes video itself."""
    from mlx_vlm.generate.video import processor_handles_video

    if processor_handles_video(processor):
        return None
    return FrameRate(fps=2.0, least=4, most=768)  # mlx-vlm's own; frames are chosen from those


def as_frames(messages: tuple[Message, ...], rate: FrameRate) -> tuple[Message, ...]:
    """The messages with videos replaced by frames, evenly chosen from the sampled frames of all videos.

    Raises `ServerError` naming a video that can't be read.
    """
    clips = [(where, part) for where, part in media_parts(messages) if isinstance(part, Video)]
    if not clips:
        return messages
    sampled = [
        (number, index)
        for number, (where, part) in enumerate(clips)
        for index in sample(inline_bytes(part), rate.asked(part.fps, part.max_frames), where).indices
    ]
    if len(sampled) > MOST_FRAMES:
        step = (len(sampled) - 1) / (MOST_FRAMES - 1)
        sampled = [sampled[round(number * step)] for number in range(MOST_FRAMES)]
    pictures: dict[str, list[Image]] = {}
    for number, (where, part) in enumerate(clips):
        indices = [index for each, index in sampled if each == number]
        frames = read_frames(inline_bytes(part), indices, where) if indices else []
        pictures[where] = [_picture(frame, where) for frame in frames]
    return with_attachments(messages, lambda part, where, _: pictures.get(where, [part]))


def _picture(frame: npt.NDArray[np.uint8], where: str) -> Image:
    """A frame uint8 [channels, height, width] of the video in the field `where`, as a file that is quick to write and
    lossless."""
    written = io.BytesIO()
    PillowImage.fromarray(np.ascontiguousarray(frame.transpose(1, 2, 0))).save(written, "BMP")
    return Image(Inline(written.getvalue()), field=where)

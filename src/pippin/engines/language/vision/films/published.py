"""How the families that take films choose, limit and time their frames, as transformers does."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pippin.engines.language.upstream.classes import become
from pippin.engines.language.vision.video import FrameRate

BY_FRAME = ("qwen2_vl", "qwen2_5_vl", "qwen3_omni_moe")
"""Families whose films keep the limits of pixels in each frame, and that transformers samples in pairs of frames."""

IN_PAIRS = (*BY_FRAME, "mimo_v2")
PARTED = ("Gemma4VideoProcessor", "Gemma4UnifiedVideoProcessor", "LlavaOnevisionVideoProcessor")
"""mlx-vlm's classes for those of transformers that choose as its base class does."""


def rate_of(processor: Any, kind: str, said: Mapping[str, Any]) -> FrameRate:
    """The rate at which films are sampled for a processor of this type of model and these settings."""
    from mlx_vlm.utils import resolve_video_sampling

    found = resolve_video_sampling(processor, {})
    component = getattr(processor, "video_processor", None)
    name = type(component).__name__
    number = getattr(component, "num_frames", None)  # of any film, as in transformers
    rate = FrameRate(
        fps=found.fps,
        least=number if isinstance(number, int) else found.min_frames,
        most=found.max_frames,
        group=max(found.frame_factor, 1),
    )
    if component is not None and getattr(component, "sample_frames_in_loader", False):
        return replace(rate, sampler=component.sample_frames)
    match name:
        case "MiniCPMVVideoProcessor":
            return replace(rate, fps=1.0, sampler=by_seconds)
        case "Qwen3VLVideoProcessor":
            # The publisher's own code spreads the frames of Qwen2-VL; transformers parts them, if it chooses them.
            pairs = kind in IN_PAIRS
            return replace(rate, group=2 if pairs else 1, parted=pairs and bool(said.get("do_sample_frames")))
    if name not in PARTED:
        return rate
    return replace(rate, group=1, parted=True, least=rate.least if number else 1)


def by_seconds(told: Any, fps: float, max_frames: int) -> list[int]:
    """The frames of MiniCPM-V: those at whole seconds, or at tenths of seconds of a film of too many."""
    count = math.ceil(told.duration * fps)
    if told.duration * fps <= max_frames:
        return [int(number / fps * told.fps) for number in range(count)]
    tenths = [int(round(number * 0.1, 1) * told.fps) for number in range(int(told.duration / 0.1))]
    return [tenths[place] for place in np.linspace(0, len(tenths) - 1, max_frames, dtype=int)]


def prepare_as_published(processor: Any, kind: str, said: Mapping[str, Any]) -> None:
    """Have the films of a processor, of these settings, be as large as in transformers, and told of the same times.

    Two things are as transformers 4.57 has them, which the publisher wrote: text after a film of Qwen2-VL and
    Qwen2.5-VL goes on after the largest position, as in its paper too, and the start and end that a template writes
    around a film of Qwen3-VL are those of its frames. Version 5.23 gives such text positions of the film, and the
    answer none of these; and it writes a second start and end.
    """
    own: Any = getattr(processor, "video_processor", None)
    match type(own).__name__:
        case "Qwen3VLVideoProcessor":
            _resize_alike(own, kind, said)
            if kind == "qwen2_5_vl":
                become(processor, type("Timed", (Timed, type(processor)), {}))
        case "Gemma4VideoProcessor" | "Gemma4UnifiedVideoProcessor":
            become(own, type(type(own).__name__, (FilmsWithTimes, type(own)), {}))
            _tell_times(processor, "fps")
        case "MiniMaxM3VLVideoProcessor":
            _tell_times(processor, "video_metadata")


def _resize_alike(own: Any, kind: str, said: Mapping[str, Any]) -> None:
    prepare, least, most = own._process_one, own.min_pixels, own.max_pixels
    if kind == "qwen3_omni_moe":  # whatever its files say
        least, most = 128 * 32**2, 768 * 32**2
    per_frame, capped = kind in BY_FRAME, bool(said.get("cap_pixels_per_frame"))
    tokens = said.get("max_video_tokens") or (128000 if per_frame else 768)
    factor, step = own.patch_size * own.merge_size, own.temporal_patch_size

    def prepared(frames: np.ndarray[Any, Any]) -> Any:
        from mlx_vlm.models.qwen3_vl import processing_qwen3_vl as library

        count, (height, width), upper = len(frames), frames.shape[-2:], most
        floor = int(least * 1.05)
        if per_frame:
            if capped:
                upper = max(min(most, int(tokens * factor**2 * 0.9) * step // count), floor)
            size = library._smart_resize_image(height, width, factor, least, upper)
        else:
            if capped:
                upper = max(min(tokens * factor**2, most // count), floor) * count
            size = size_of_film(count, height, width, step, factor, least, upper)
        whole = np.concatenate([frames, np.repeat(frames[-1:], -count % step, axis=0)])
        # A film that is as large as it shall be keeps its size.
        own.min_pixels = own.max_pixels = len(whole) * math.prod(size)
        return prepare(library._resize_video_frames(whole, *size))

    own._process_one = prepared


def size_of_film(
    count: int, height: int, width: int, step: int, factor: int, least: int, most: int
) -> tuple[int, int]:
    """The height and width of the frames of Qwen3-VL, whose limits are those of all frames together."""
    if (grown := max(factor / height, factor / width)) > 1:
        height, width = int(height * grown), int(width * grown)
    if max(height, width) > 200 * min(height, width):
        raise ValueError("absolute aspect ratio must be smaller than 200")
    tall, wide = (round(side / factor) * factor for side in (height, width))
    pixels, whole = count * height * width, max(round(count / step), 1) * step * tall * wide
    if whole > most:
        by = math.sqrt(pixels / most)
        return max(factor, int(height / by / factor) * factor), max(factor, int(width / by / factor) * factor)
    if whole < least:
        by = math.sqrt(least / pixels)
        return math.ceil(height * by / factor) * factor, math.ceil(width * by / factor) * factor
    return tall, wide


def _tell_times(processor: Any, taken: str) -> None:
    """Have a processor say that it takes what tells the times of a film's frames, and get it as `taken`."""
    kind: Any = type(processor)

    def told(self: Any, *given: Any, video_metadata: Any = None, **named: Any) -> Any:
        if named.get("videos") is not None:
            named[taken] = video_metadata
        return kind.__call__(self, *given, **named)

    *known, rest = inspect.signature(kind.__call__).parameters.values()
    own = inspect.Parameter("video_metadata", inspect.Parameter.KEYWORD_ONLY, default=None)
    told.__signature__ = inspect.Signature([*known, own, rest])  # type: ignore[attr-defined]
    become(processor, type(kind.__name__, (kind,), {"__call__": told}))


class FilmsWithTimes:
    """What takes the frames of films for evenly spread: here it is given their times in place of rates."""

    def __call__(self, videos: Any, fps: Any = None) -> Any:
        made = super().__call__(videos)  # type: ignore[misc]
        if fps is not None:
            made["frame_timestamps"] = [[index / told.fps for index in told.frames_indices] for told in fps]
        return made


class Timed:
    """What a processor lacks that leaves out how many seconds the frames of one step of time last."""

    def __call__(
        self, images: Any = None, text: Any = None, videos: Any = None, fps: Any = None, **given: Any
    ) -> Any:
        made = super().__call__(images=images, text=text, videos=videos, **given)  # type: ignore[misc]
        if videos is not None and fps is not None:
            step = self.video_processor.temporal_patch_size  # type: ignore[attr-defined]
            made["second_per_grid_ts"] = np.array([step / each for each in fps], np.float32)
        return made

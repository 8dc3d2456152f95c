"""How the families that take films choose, limit and time their frames, as transformers does."""

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


def prepare_as_published(processor: Any, kind: str) -> None:
    """Have films of Qwen2-VL and the like keep the limits of pixels in each frame, as in transformers; mlx-vlm's class
    is Qwen3-VL's, which has them for all frames together. And tell Qwen2.5-VL how many seconds its frames last."""
    own: Any = getattr(processor, "video_processor", None)
    if kind not in BY_FRAME or type(own).__name__ != "Qwen3VLVideoProcessor":
        return
    prepare, limits = own._process_one, (own.min_pixels, own.max_pixels)

    def prepared(frames: np.ndarray[Any, Any]) -> Any:
        rest = -len(frames) % own.temporal_patch_size
        whole = np.concatenate([frames, np.repeat(frames[-1:], rest, axis=0)])
        own.min_pixels, own.max_pixels = (len(whole) * limit for limit in limits)
        return prepare(whole)

    own._process_one = prepared
    if kind == "qwen2_5_vl":
        become(processor, type("Timed", (Timed, type(processor)), {}))


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

"""Video as bytes, through PyAV: clients' video is decoded within limits to frames at a rate."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pippin.config.errors import install_command
from pippin.core.errors import ServerError
from pippin.engines.base import check_wanted
from pippin.engines.containers import frames_of, open_container, packets_of
from pippin.engines.refusals import refused

MOST_SOURCE_FRAMES = 36_000
"""The most frames that a file may hold, sampled or not: 20 minutes at 30 in a second."""

MOST_FRAME_PIXELS = 4096 * 2304
MOST_CLIP_PIXELS = 64_000_000
"""The most pixels of all sampled frames together; larger frames are scaled down while they are decoded."""

MOST_SECONDS = 60.0
"""The most seconds that decoding the frames of one video may take."""

MOST_RATE = 60.0
LEAST_FRAMES = 4


@dataclass(frozen=True, kw_only=True)
class FrameRate:
    """How many frames are sampled: `fps` in a second, from `least` to `most` in all, a multiple of `group`."""

    fps: float
    least: int
    most: int
    group: int = 2
    parted: bool = False
    """Each frame is the first of one of as many equal parts; else they are spread from the first to the last."""
    sampler: Callable[..., Any] | None = None
    """Of a processor that chooses frames itself: gives their indices for mlx-vlm's `VideoMetadata` of the file, `fps`
    and `max_frames`."""

    def asked(self, fps: float | None, most: int | None) -> "FrameRate":
        """What a request asks for, within the limits."""
        most = min(most or self.most, self.most)
        least = self.least if fps is None else min(self.least, LEAST_FRAMES)
        return replace(self, fps=fps or self.fps, least=min(least, most), most=most)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sampled:
    """Which frames of a video file are shown."""

    indices: list[int]
    source_frames: int
    source_fps: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Clip(Sampled):
    """The sampled frames of a video, and what the model is told of the file that they come from."""

    frames: npt.NDArray[np.uint8]  # [frames, channels, height, width]

    @property
    def fps(self) -> float:
        """Sampled frames per second."""
        return len(self.indices) / self.source_frames * self.source_fps

    @property
    def metadata(self) -> Any:
        """What processors of mlx-vlm are told of the file."""
        from mlx_vlm.utils import VideoMetadata

        return VideoMetadata(self.source_frames, self.source_fps, self.indices)


def read_clip(data: bytes, rate: FrameRate, param: str) -> Clip:
    """Decode the sampled frames of a video. Raises `ServerError` naming `param` if it is unreadable or too large."""
    sampled = sample(data, rate, param)
    frames = read_frames(data, sampled.indices, param)
    return Clip(frames=np.stack(frames), **vars(replace(sampled, indices=sampled.indices[: len(frames)])))


@contextmanager
def _opened(data: bytes, param: str) -> Iterator[tuple[Any, Any]]:
    """A video file and its first stream of pictures, within whose context what FFmpeg can't read is refused."""
    try:
        import av
    except ImportError as error:
        needed = f"is a video, which needs an extra: {install_command('vision')}"
        raise refused(param, needed, "unsupported") from error
    try:
        with open_container(data) as container:
            streams = container.streams.video
            if not streams or streams[0].codec_context is None:  # its codec is unknown
                raise _unreadable(param)
            yield container, streams[0]
    except av.FFmpegError as error:
        raise _unreadable(param) from error


def sample(data: bytes, rate: FrameRate, param: str) -> Sampled:
    """Choose the frames of a video without decoding it. Raises as `read_clip` does."""
    total = 0
    with _opened(data, param) as (container, stream):
        if stream.width * stream.height > MOST_FRAME_PIXELS:
            size = f"{stream.width} x {stream.height}"
            raise refused(param, f"has frames of {size} pixels; send a smaller video.")
        for packet in packets_of(container, stream):
            check_wanted()
            total += packet.size > 0
            if total > MOST_SOURCE_FRAMES:
                raise refused(param, f"has more than {MOST_SOURCE_FRAMES} frames; send a shorter video.")
        fps = float(stream.average_rate or stream.guessed_rate or 1)
    if not total:
        raise _unreadable(param)
    fps = fps if math.isfinite(fps) and fps > 0 else 1.0
    return Sampled(indices=_sampled(total, fps, rate), source_frames=total, source_fps=fps)


def _sampled(total: int, fps: float, rate: FrameRate) -> list[int]:
    """The indices of the sampled frames in their order, evenly spread over the file, or as the processor chooses."""
    if rate.sampler is not None:
        from mlx_vlm.utils import VideoMetadata

        told = VideoMetadata(total, fps, list(range(total)), duration=total / fps)
        chosen = rate.sampler(told, fps=min(rate.fps, MOST_RATE), max_frames=rate.most)
        return sorted(min(max(int(index), 0), total - 1) for index in chosen) or [0]
    wanted = total / fps * min(rate.fps, MOST_RATE)
    wanted = min(max(wanted, rate.least), rate.most, total)
    count = max(math.floor(wanted / rate.group) * rate.group, 1)
    if rate.parted:
        return [number * total // count for number in range(count)]
    return [int(index) for index in np.linspace(0, total - 1, count).round()]


def read_frames(data: bytes, wanted: list[int], param: str) -> list[npt.NDArray[np.uint8]]:
    """Decode the frames at these ascending indices, at least one of them; each is uint8 [channels, height, width] and
    of the first one's size. Raises as `read_clip` does."""
    frames: list[npt.NDArray[np.uint8]] = []
    size: tuple[int, int] | None = None
    ends = time.monotonic() + MOST_SECONDS
    with _opened(data, param) as (container, stream):
        for index, frame in enumerate(frames_of(container, stream)):
            check_wanted()
            if time.monotonic() > ends:
                slow = f"takes more than {MOST_SECONDS:g} seconds to decode; send a shorter or smaller video."
                raise refused(param, slow)
            if len(frames) == len(wanted):
                break
            if index != wanted[len(frames)]:
                continue
            if size is None:
                if frame.width * frame.height > MOST_FRAME_PIXELS:
                    raise _unreadable(param)
                scale = min(1.0, math.sqrt(MOST_CLIP_PIXELS / (len(wanted) * frame.width * frame.height)))
                size = (max(int(frame.width * scale), 1), max(int(frame.height * scale), 1))
            pixels = frame.reformat(width=size[0], height=size[1], format="rgb24").to_ndarray()
            # Telephones film upright pictures on their side, and tell by how much they are to be turned.
            upright = np.rot90(pixels, round(frame.rotation / 90))
            shown = np.ascontiguousarray(upright.transpose(2, 0, 1))
            while len(frames) < len(wanted) and wanted[len(frames)] == index:  # some choose one twice
                frames.append(shown)
    if not frames:
        raise _unreadable(param)
    return frames


def _unreadable(param: str) -> ServerError:
    return refused(param, "can't be read as a video; send a whole mp4, webm, mov, mkv or gif file.")

"""Films of families for which mlx-vlm prepares pictures only: chosen, prepared and written as transformers does.

SmolVLM's films are an introduction and a time before each frame, those of GLM-4V pairs of frames with a time behind
each, and those of InternVL numbered frames, a tile each.
"""

import math
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image as PillowImage

from pippin.engines.language.upstream.classes import become
from pippin.engines.language.vision.films.published import size_of_film
from pippin.engines.language.vision.media import Modality
from pippin.engines.language.vision.preprocessor import WHOLE, Settings, unprepared
from pippin.engines.language.vision.video import MOST_RATE, FrameRate

Frames = npt.NDArray[np.uint8]
"""[frames, channels, height, width]"""

CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}


class WrittenFilms:
    """How the films of a family are made of these settings. The attributes are those of transformers' class."""

    usual: ClassVar[dict[str, Any]] = {}
    token = ""
    """What the processor of single media replaces by a film; empty for a family that it does not take."""
    do_rescale: bool
    do_normalize: bool
    rescale_factor: float
    image_mean: list[float]
    image_std: list[float]
    resample: Any
    fps: float
    num_frames: int

    def __init__(self, said: Mapping[str, Any]) -> None:
        self.said = said
        usual = {"do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255, "num_frames": None}
        vars(self).update({name: said.get(name, value) for name, value in (usual | self.usual).items()})

    @property
    def rate(self) -> FrameRate:
        return FrameRate(fps=self.fps, least=1, most=self.num_frames, sampler=self.chosen)

    def chosen(self, told: Any, fps: float, max_frames: int) -> list[int]:
        """The indices of the frames that are shown of a file."""
        raise NotImplementedError

    def written(self, processor: Any, frames: Frames, told: Any) -> tuple[str, dict[str, Any]]:
        """What replaces a film's token, and the arrays for the model."""
        raise NotImplementedError

    def resized(self, frames: Frames, *sizes: tuple[int, int]) -> Frames:
        """The frames, brought to each of these heights and widths in turn."""
        found = []
        for picture in pictures_of(frames):
            for height, width in sizes:
                picture = picture.resize((width, height), self.resample)
            found.append(np.asarray(picture).transpose(2, 0, 1))
        return np.stack(found)

    def normal(self, frames: Frames) -> npt.NDArray[np.float32]:
        pixels = frames.astype(np.float32)
        if self.do_rescale:
            pixels *= np.float32(self.rescale_factor)
        if self.do_normalize:
            mean, deviation = (
                np.array(each, np.float32)[:, None, None] for each in (self.image_mean, self.image_std)
            )
            pixels = (pixels - mean) / deviation
        return pixels


def pictures_of(frames: Frames) -> list[PillowImage.Image]:
    return [PillowImage.fromarray(np.ascontiguousarray(frame.transpose(1, 2, 0))) for frame in frames]


class SmolVLMFilms(WrittenFilms):
    usual: ClassVar = {
        "fps": 1,
        "num_frames": 64,
        "resample": 1,
        "size": {"longest_edge": 4 * 364},
        "max_image_size": {"longest_edge": 364},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    token = "<image>"
    size: dict[str, int]
    max_image_size: dict[str, int]

    def __init__(self, said: Mapping[str, Any]) -> None:
        sampled = said.get("video_sampling") or {}
        names = {"max_frames": "num_frames", "fps": "fps", "video_size": "size"}
        named = {names[name]: value for name, value in sampled.items() if name in names}
        super().__init__({**said, **named, "size": said.get("size", named.get("size", self.usual["size"]))})

    def chosen(self, told: Any, fps: float, max_frames: int) -> list[int]:
        """Frames from the first to the last, or from a second behind it to one before the last where a film is long."""
        count = max(min(round(fps * told.duration), max_frames), 1)
        first, last = 0, told.total_num_frames - 1
        if told.duration - 2 > max_frames * fps:
            first, last = int(told.fps), int(told.total_num_frames - told.fps)
        indices: list[int] = np.unique(np.linspace(first, last, count, dtype=int)).tolist()
        return indices

    def written(self, processor: Any, frames: Frames, told: Any) -> tuple[str, dict[str, Any]]:
        from mlx_vlm.models.smolvlm.processing_smolvlm import _prompt_single_image

        shown = _prompt_single_image(
            processor.image_seq_len,
            processor.fake_image_token,
            processor.image_token,
            processor.global_image_token,
        )
        length = timedelta(seconds=int(told.total_num_frames / told.fps))
        text = f"You are provided the following series of {in_words(len(frames))} frames from a {length} "
        text += "[H:MM:SS] video.\n"
        for second in told.timestamps:
            text += f"\nFrame from {int(second // 60):02d}:{int(second % 60):02d}:{shown}"
        longest, side = min(self.size["longest_edge"], 4096), self.max_image_size["longest_edge"]
        height, width = frames.shape[-2:]
        size = _by_longest(height, width, longest)
        pixels = self.normal(self.resized(frames, size, (side, side)))[None]
        mask = np.ones((1, len(frames), side, side), np.int64)
        return f"{text}\n\n", {"pixel_values": pixels, "pixel_attention_mask": mask}


def _by_longest(height: int, width: int, longest: int) -> tuple[int, int]:
    """The height and width of a frame whose longer side is so long; the shorter one is even."""
    ratio = width / height
    shorter = int(longest / ratio) if width >= height else int(longest * ratio)
    shorter = max(shorter + shorter % 2, 1)
    return (shorter, longest) if width >= height else (longest, shorter)


class Glm4vFilms(WrittenFilms):
    usual: ClassVar = {
        **CLIP,
        "resample": 3,
        "fps": 2,
        "min_pixels": 112 * 112,
        "max_pixels": 28 * 28 * 2 * 30000,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "max_duration": 300,
    }
    token = "<|video|>"
    min_pixels: int
    max_pixels: int
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    max_duration: float

    @property
    def rate(self) -> FrameRate:
        # Its class has a number of frames, and does not read it.
        return FrameRate(fps=self.fps, least=1, most=int(self.max_duration * self.fps), sampler=self.chosen)

    def chosen(self, told: Any, fps: float, max_frames: int) -> list[int]:
        """Frames at even times, in pairs; those of a film of too many are spread over its length."""
        last = told.total_num_frames - 1
        count = max(int(told.duration * fps), 1)
        times = [number / fps for number in range(count)]
        if told.duration > self.max_duration or count > max_frames:
            most = min(max_frames, int(self.max_duration * fps))
            spread = np.linspace(0, told.duration, most) if most <= last else np.arange(last + 1) / told.fps
            times = spread.tolist()
        return self.paired(min(last, math.ceil(time * told.fps)) for time in times)

    def spelled(self, second: float) -> str:
        return f"{int(second)}"

    def paired(self, indices: Iterable[int]) -> list[int]:
        unique = list(dict.fromkeys(indices))
        return [*unique, *unique[-1:]] if len(unique) % 2 else unique

    def written(self, processor: Any, frames: Frames, told: Any) -> tuple[str, dict[str, Any]]:
        patch, merge, step = self.patch_size, self.merge_size, self.temporal_patch_size
        height, width = frames.shape[-2:]
        limits = self.min_pixels, self.max_pixels
        size = size_of_film(len(frames), height, width, step, patch * merge, *limits)
        pixels = self.normal(self.resized(frames, size))
        pixels = np.concatenate([pixels, np.repeat(pixels[-1:], -len(pixels) % step, axis=0)])
        steps, rows, columns = len(pixels) // step, size[0] // patch, size[1] // patch
        cut = pixels.reshape(steps, step, 3, rows // merge, merge, patch, columns // merge, merge, patch)
        cut = cut.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(steps * rows * columns, -1)
        shown = f"<|begin_of_image|>{processor.image_token * (rows * columns // merge**2)}<|end_of_image|>"
        # A pair of frames has the positions of a picture.
        grid = np.array([[1, rows, columns]] * steps)
        text = "".join(shown + self.spelled(second) for second in told.timestamps[::2])
        return text, {"pixel_values": cut, "image_grid_thw": grid}


class Glm46vFilms(Glm4vFilms):
    """GLM-4.6V's frames are more where the film is short, whatever its files say."""

    @property
    def rate(self) -> FrameRate:
        return FrameRate(fps=math.inf, least=1, most=640, sampler=self.chosen)

    def chosen(self, told: Any, fps: float, max_frames: int) -> list[int]:
        if fps != MOST_RATE:  # a request's own
            return super().chosen(told, fps, max_frames)
        total, seconds = told.total_num_frames, min(told.duration, 2400)
        pace = self.temporal_patch_size * (3 if seconds <= 30 else 1 if seconds <= 300 else 0.5)
        count, found, second = min(int(seconds * pace), max_frames), list[int](), 0.0
        for index in range(total):
            if index * (1 / told.fps) >= second:
                second += 1 / pace
                found.append(index)
                if second >= int(told.duration):
                    break
        if len(found) != count or total < count:
            first, last = (found[0], found[-1]) if total >= count > len(found) else (0, total - 1)
            found = np.linspace(first, last, max(count, 1), dtype=int).tolist()
        return self.paired(found)

    def spelled(self, second: float) -> str:
        return f"{second:.1f} seconds"


class InternVLFilms(WrittenFilms):
    usual: ClassVar = {
        "resample": 3,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    }
    marks = re.compile("<IMG_CONTEXT>|<image>")

    def __init__(self, said: Mapping[str, Any]) -> None:
        # Frames of their size are prepared as pictures are.
        super().__init__({name: said[name] for name in ("num_frames", "resample") if name in said})
        self.said = said

    @property
    def rate(self) -> FrameRate:
        if self.num_frames is not None:
            return FrameRate(fps=math.inf, least=1, most=self.num_frames, sampler=self.chosen)
        # Its files choose no frames, and transformers shows all.
        return FrameRate(fps=2.0, least=1, most=16, sampler=self.chosen)

    def chosen(self, told: Any, fps: float, max_frames: int) -> list[int]:
        """The frame in the middle of each of as many equal parts."""
        total = told.total_num_frames
        count = max(min(int(told.duration * fps), max_frames, total), 1)
        return [int(total / count * (number + 0.5)) for number in range(count)]

    def tiles(self, frames: Frames, side: int) -> list[PillowImage.Image]:
        """The frames as pictures that are not cut, since each is as large as a tile."""
        return pictures_of(self.resized(frames, (side, side)))

    def marked(self, text: str, counts: Iterable[int | None]) -> str:
        """A prompt with a mark for each frame: of each medium, `counts` has how many frames it is, or None for a
        picture."""
        left = iter(counts)

        def marks(found: re.Match[str]) -> str:
            count = next(left, None)
            if count is None:
                return found[0]
            return "\n".join(f"Frame{number + 1}: {found[0]}" for number in range(count))

        return self.marks.sub(marks, text)


KINDS: dict[str, type[WrittenFilms]] = {
    "smolvlm": SmolVLMFilms,
    "glm4v": Glm4vFilms,
    "glm4v_moe": Glm4vFilms,
    "internvl": InternVLFilms,
    "internvl_chat": InternVLFilms,
}


def films_of(kind: str, settings: Settings) -> WrittenFilms | None:
    """The films of a type of model, or None for one whose films are not written here."""
    made = KINDS.get(kind)
    if made is None:
        return None
    classes = {each.get("processor_class") for each in (settings[WHOLE], settings["image"])}
    if made is Glm4vFilms and "Glm46VProcessor" in classes:
        made = Glm46vFilms
    # The publisher's code of InternVL reads config.json alone.
    return made({} if kind == "internvl_chat" else settings["video"])


def lost_by(films: WrittenFilms) -> dict[Modality, list[str]]:
    """The fields of their settings that films are not prepared by."""
    return unprepared({"video": dict(films.said)}, SimpleNamespace(video_processor=films))


def take_films(processor: Any, films: WrittenFilms) -> None:
    """Have a processor of pictures take a film too."""
    own = {"films": films, "film_token": films.token}
    become(processor, type(type(processor).__name__, (_Taking, type(processor)), own))


class _Taking:
    films: WrittenFilms

    def __call__(
        self,
        images: Any = None,
        text: Any = None,
        videos: Any = None,
        video_metadata: Any = None,
        **given: Any,
    ) -> Any:
        if videos is None:
            return super().__call__(images=images, text=text, **given)  # type: ignore[misc]
        written, arrays = self.films.written(self, videos[0], video_metadata[0])
        replaced = [each.replace(self.films.token, written, 1) for each in text]
        return {**self.tokenizer(replaced), **arrays}  # type: ignore[attr-defined]


UNITS = (
    *"zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen".split(),
    *"sixteen seventeen eighteen nineteen".split(),
)
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(number: int) -> str:
    """A number below a thousand in words, as num2words writes it."""
    if number < 20:
        return UNITS[number]
    if number < 100:
        return TENS[number // 10 - 2] + (f"-{UNITS[number % 10]}" if number % 10 else "")
    rest = f" and {in_words(number % 100)}" if number % 100 else ""
    return f"{UNITS[number // 100]} hundred{rest}"

"""The model's own processor: turns a medium into the arrays that its encoder takes, and into placeholder text.

Pictures are resized, and video and audio decoded, before the processor sees them.
"""

import hashlib
import inspect
import logging
import math
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from operator import attrgetter
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from PIL import Image as PillowImage

from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Audio, Image, MediaPart, Video
from pippin.core.errors import ServerError
from pippin.engines import pictures, sound
from pippin.engines.language.kv_cache.agreement import FAILURES
from pippin.engines.language.template.template import ChatTemplate, TemplateRefusal
from pippin.engines.language.text.tokenizer import Tokenizer, TooLong
from pippin.engines.language.vision.checkpoint import placeholder_tokens, read_config
from pippin.engines.language.vision.films.frames import frame_rate
from pippin.engines.language.vision.films.published import prepare_as_published, rate_of
from pippin.engines.language.vision.films.written import WrittenFilms, films_of, lost_by, take_films
from pippin.engines.language.vision.media import (
    MODALITIES,
    MediaStyle,
    Medium,
    Modality,
    Parts,
    PlacedPrompt,
    TextOnly,
    expand_placeholders,
    inline_bytes,
    modality_of,
    place,
    require_text_after,
)
from pippin.engines.language.vision.preprocessor import (
    FILE,
    Settings,
    hearing_part,
    in_older_files,
    resize_alike,
    settings_in,
    splitting,
    unprepared,
)
from pippin.engines.language.vision.tiles import cut_into_tiles
from pippin.engines.language.vision.video import Clip, FrameRate, read_clip
from pippin.engines.recent import Recent
from pippin.engines.refusals import refused

log = logging.getLogger(__name__)

TOKEN_TYPES = "mm_token_type_ids"

TEXT_OUTPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", TOKEN_TYPES, "num_crops"})
"""The outputs of processors that describe the text and not the medium."""

PLACEHOLDERS: dict[Modality, tuple[tuple[str, ...], ...]] = {
    "image": (("boi_token",), ("image_token",)),
    "video": (
        ("vision_start_token", "video_token", "vision_end_token"),
        ("<|begin_of_video|>", "video_token", "<|end_of_video|>"),
        ("video_token",),
        ("<|vision_start|>", "video_token", "<|vision_end|>"),
        ("film_token",),
    ),
    "audio": (("boa_token",), ("audio_token",)),
}
"""The attributes of processors, and tokens, that together spell a medium's placeholder; the first spelling that works
is used. Processors that separate the frames of a video repeat the tokens around it for each frame."""

VISION_MARKS = ("<|vision_start|>", "<|vision_end|>")
"""The tokens that most templates write around a medium, and that some processors replace along with it."""

MOST_KEPT_BYTES = 1 << 28
"""The most bytes of processed media that are kept for follow-up requests."""

MOST_MEDIA_BYTES = 1 << 31
"""The most bytes of the processed media of one request."""

MOST_AUDIO_SECONDS = 30 * 60.0

LOW_DETAIL_PIXELS = 512 * 512
"""The most pixels of a picture with `detail: low`."""

MOST_REQUESTED_PIXELS = 1 << 24
"""The most pixels to which a request may resize a picture: the cost of encoding it grows with them."""


class _RecordingTokenizer:
    """A processor's tokenizer that records the last text it was given: the prompt with placeholders expanded."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.text = ""

    def __call__(self, text: Any = None, **settings: Any) -> Any:
        self.text = text if isinstance(text, str) else text[0]
        return self._tokenizer(text, **{"add_special_tokens": False, **settings})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


class LibraryProcessor(TextOnly):
    """A processor as mlx-vlm and transformers open it, and how media are decoded for it."""

    takes_several = True  # pictures in a prompt
    _scales = True
    """Whether pictures are scaled, to the pixels that they may have, before the processor gets them."""

    def __init__(
        self, processor: Any, settings: Settings, config: dict[str, Any], options: ModelOptions
    ) -> None:
        cut_into_tiles(processor, config)
        resize_alike(processor)
        self._processor = processor
        self._options = options
        self._lock = threading.Lock()
        self._unprepared = unprepared(settings, processor, config)
        kind = str(config.get("model_type"))
        prepare_as_published(processor, kind, settings["video"])
        self._rate = rate_of(processor, kind, settings["video"])
        self._frame_rate = frame_rate(processor)
        # A processor that takes no video may accept it silently, and drop it.
        self.tried = [each for each in MODALITIES if each != "video" or self._frame_rate is None]
        films = films_of(kind, settings)
        if films is not None and self._takes(films):
            self._rate, self.tried = films.rate, list(MODALITIES)
            self._unprepared |= lost_by(films)

    def _takes(self, films: WrittenFilms) -> bool:
        """Have the processor take such films, if it can."""
        return False

    @property
    def frames(self) -> FrameRate | None:
        # Not for a model that takes one picture at most.
        seen = self.modalities & {"image", "video"} == {"image"} and self.takes_several
        return self._frame_rate if seen else None

    @property
    def _audio_rate(self) -> int:
        """The sample rate of the audio that the model takes: that of its feature extractor, or else the one that
        mlx-vlm's `prepare_inputs` uses."""
        own = hearing_part(self._processor)
        return int(getattr(own, "sampling_rate", getattr(own, "audio_sampling_rate", 16000)))

    def _limits(self, part: Image, param: str) -> tuple[int | None, int | None]:
        """The least and most pixels of a picture: what the request asks for, within the options."""
        least, most = self._options.min_pixels, self._options.max_pixels
        for name, asked in (("min_pixels", part.min_pixels), ("max_pixels", part.max_pixels)):
            if asked is not None and not 0 < asked <= MOST_REQUESTED_PIXELS:
                raise refused(param, f"has {name} {asked}; it may be from 1 to {MOST_REQUESTED_PIXELS}.")
        limits = [limit for limit in (part.max_pixels, most) if limit is not None]
        if part.detail == "low":
            limits.append(LOW_DETAIL_PIXELS)
        most = min(limits, default=None)
        least = part.min_pixels or least
        if least is not None and most is not None and least > most:
            if part.min_pixels is not None:
                raise refused(param, f"asks for {least} pixels at least, and {most} are the most.")
            least = most
        return least, most

    def _decoded(self, part: MediaPart, param: str) -> Any:
        """A picture, a `Clip`, or samples at the rate that the model takes. Raises `ServerError` naming `param`."""
        data = inline_bytes(part)
        if fields := self._unprepared.get(modality_of(part)):
            lost = f"its processor leaves out {', '.join(fields)}. Leave it out, or choose another model."
            raise refused(param, f"can't be prepared as the model's {FILE} says: {lost}", "unsupported")
        match part:
            case Image():
                limits = self._limits(part, param) if self._scales else (None, None)
                return resized(pictures.decode(data, param=param), part, *limits, param)
            case Video():
                return read_clip(data, self._rate.asked(part.fps, part.max_frames), param)
            case Audio():
                return sound.decode(data, self._audio_rate, param=param, longest=MOST_AUDIO_SECONDS)


class MediaProcessor(LibraryProcessor):
    """A model's processor, with the last media that it processed. Several threads may use it at once."""

    def __init__(self, folder: Path, options: ModelOptions, tokenizer: Tokenizer) -> None:
        """Raises what mlx-vlm and transformers raise for a folder that they can't read."""
        # The models of mlx-vlm replace processors that need torch with their own.
        import mlx_vlm.utils
        from transformers import AutoProcessor

        config = read_config(folder)
        mlx_vlm.utils.get_model_and_args(config)
        opening: Any = AutoProcessor
        if config.get("model_type") == "pixtral":
            from mlx_vlm.models.pixtral.processing_pixtral import PixtralProcessor

            # AutoProcessor goes by the type in the folder, which transformers 5 writes as llava.
            opening = PixtralProcessor
        # `trust_remote_code` is always given: mlx-vlm's own processors run code from the folder by default.
        trusted, settings = options.trust_remote_code, settings_in(folder)
        split = splitting(settings["image"], config)
        with in_older_files(folder, settings) as files:
            opened = opening.from_pretrained(files, trust_remote_code=trusted, **split)
        super().__init__(opened, settings, config, options)
        self._scales = "max_pixels" not in vars(self._processor.image_processor)
        self._recording = self._processor.tokenizer = _RecordingTokenizer(self._processor.tokenizer)
        most = options.vision_cache_size
        self._kept: Recent[bytes, Medium] = Recent(most, MOST_KEPT_BYTES, attrgetter("bytes"))
        self._placeholder_tokens = placeholder_tokens(config)
        # Some processors write a video as its frames, each with the tokens of a picture.
        self._placeholder_tokens["video"] |= self._placeholder_tokens["image"]
        self._parameters = frozenset(inspect.signature(self._processor.__call__).parameters)
        self._tokenizer = tokenizer
        self.placeholders: dict[Modality, str] = {}
        self.samples: dict[Modality, Medium] = {}  # small media to test the model with

    def _takes(self, films: WrittenFilms) -> bool:
        if films.token:
            take_films(self._processor, films)
        return bool(films.token)

    def try_modalities(self) -> None:
        """Find out, by trying, which modalities the processor takes and how their placeholders are spelled."""
        trials: dict[Modality, Callable[[], dict[str, Any]]] = {
            "image": lambda: {"images": [sample_image()]},
            "video": lambda: self._video_arguments(sample_clip()),
            "audio": lambda: self._audio_arguments(np.zeros(self._audio_rate, np.float32)),
        }
        for modality in self.tried:
            trial = trials[modality]
            for attributes in PLACEHOLDERS[modality]:
                names: list[Any] = [
                    each if each.startswith("<") else getattr(self._processor, each, None)
                    for each in attributes
                ]
                if not all(map(self._knows, names)) or not self._placeholder_tokens[modality]:
                    continue
                spelled = "".join(names)
                try:
                    sample = self._run(modality, b"", spelled, trial())
                    if sample.placeholders and self._stands_alone(spelled, sample, trial()):
                        self.placeholders[modality], self.samples[modality] = spelled, sample
                        break
                except (*FAILURES, ImportError) as error:
                    log.info("its processor takes no %s: %s: %s", modality, type(error).__name__, error)
        self.modalities = frozenset(self.placeholders)

    def _knows(self, name: Any) -> bool:
        return isinstance(name, str) and self._tokenizer.single(name) is not None

    def _stands_alone(self, placeholder: str, sample: Medium, arguments: dict[str, Any]) -> bool:
        """Whether the processor leaves the text around a placeholder unchanged, including the tokens that mark
        media."""
        around = [("a", "b")]
        if all(map(self._knows, VISION_MARKS)):
            around.append(VISION_MARKS)
        with self._lock:
            for before, after in around:
                self._processor(text=[f"{before}{placeholder}{after}"], **arguments)
                if self._recording.text != f"{before}{sample.text}{after}":
                    return False
        return True

    def style(self, template: ChatTemplate) -> MediaStyle:
        known = set()
        for modality, placeholder in self.placeholders.items():
            content = [{"type": modality}, {"type": "text", "text": "QXA"}]
            with suppress(TemplateRefusal):
                rendered = template.render(
                    [{"role": "user", "content": content}], {"add_generation_prompt": False}
                )
                if rendered.count(placeholder) == 1 and "QXA" in rendered:
                    known.add(modality)
        lines = {modality for modality, each in self.samples.items() if each.text.endswith("\n")}
        return MediaStyle(self.placeholders, frozenset(known), frozenset(lines))

    def expanded(self, render: Callable[[], str], parts: Parts, most: int | None) -> tuple[str, list[Medium]]:
        # Media first: the rest of a prompt that is too long is not processed, since a large picture takes seconds and
        # other pictures wait for it.
        media, size = list[Medium](), 0
        for where, part in parts:
            media.append(self.process(part, where))
            size += media[-1].bytes
            if most is not None and (tokens := sum(len(medium.tokens) for medium in media)) > most:
                raise TooLong(tokens)
            if size > MOST_MEDIA_BYTES:
                raise ServerError(
                    "invalid_request",
                    f"The media up to '{where}' are too large together; send fewer, or smaller ones ('max_pixels').",
                    where,
                )
        return expand_placeholders(render(), media, self.placeholders), media

    def placed(
        self, text: str, media: list[Medium], parts: Parts, encode: Callable[[str], list[int]]
    ) -> PlacedPrompt:
        tokens = encode(text)
        known = (self._placeholder_tokens[modality] for modality in self.placeholders)
        found = place(media, tokens, frozenset().union(*known))
        return tokens, require_text_after(found, len(tokens))

    def tested(self, is_faithful: Callable[[Medium], bool]) -> "MediaProcessor":
        found = copy(self)
        refused = {modality for modality, sample in self.samples.items() if not is_faithful(sample)}
        found.modalities -= refused
        for modality in sorted(refused):
            log.warning("the model takes no %s in its batches: the answers would not be mlx-vlm's", modality)
        return found

    def process(self, part: MediaPart, param: str) -> Medium:
        """Process a medium, or return a kept one. Raises `ServerError` naming `param`."""
        modality = modality_of(part)
        digest = digest_of(part, inline_bytes(part), self._options)
        if (kept := self._kept.get(digest)) is not None:
            return kept
        arguments = self._arguments(part, param)
        try:
            medium = self._run(modality, digest, self.placeholders[modality], arguments)
        except FAILURES as error:
            raise unpreparable(param, error) from error
        self._kept.put(digest, medium)
        return medium

    def _arguments(self, part: MediaPart, param: str) -> dict[str, Any]:
        """The processor's arguments for a medium. Raises `ServerError` naming `param`."""
        decoded = self._decoded(part, param)
        match part:
            case Image():
                limits = (None, None) if self._scales else self._limits(part, param)
                named = zip(("min_pixels", "max_pixels"), limits, strict=True)
                return {"images": [decoded], **{name: limit for name, limit in named if limit is not None}}
            case Video():
                return self._video_arguments(decoded)
            case Audio():
                return self._audio_arguments(decoded)

    def _audio_arguments(self, samples: sound.Samples) -> dict[str, Any]:
        return {("audios" if "audios" in self._parameters else "audio"): [samples]}

    def _video_arguments(self, clip: Clip) -> dict[str, Any]:
        metadata: dict[str, Any] = {"fps": [clip.fps], "video_metadata": [clip.metadata]}
        return {
            "videos": [clip.frames],
            **{name: value for name, value in metadata.items() if name in self._parameters},
        }

    def _run(self, modality: Modality, digest: bytes, placeholder: str, arguments: dict[str, Any]) -> Medium:
        """Run the processor on a text that is the placeholder alone."""
        with self._lock:
            outputs = self._processor(text=[placeholder], **arguments)
            text = self._recording.text
        tokens = tuple(self._tokenizer.literals.encode(text))
        wanted = self._placeholder_tokens[modality]
        return Medium(
            modality=modality,
            digest=digest,
            text=text,
            tokens=tokens,
            placeholders=tuple(index for index, token in enumerate(tokens) if token in wanted),
            arrays={
                name: plain_arrays(value)
                for name, value in outputs.items()
                if name not in TEXT_OUTPUTS and value is not None
            },
            has_token_types=TOKEN_TYPES in outputs,
        )


def unpreparable(param: str, error: Exception, count: int = 1) -> ServerError:
    """The refusal of the last of `count` media, on which the model's processor fails. What a library says of it is for
    the log."""
    log.info("a processor fails: %s: %s", type(error).__name__, error)
    longest = re.search(r"aspect ratio must be smaller than (\d+)", str(error))
    why = "its processor fails on it; send one of another size or length."
    if longest is not None:
        why = f"one side is more than {longest[1]} times as long as the other; send a part of it."
    which = "or a medium before it " if count > 1 else ""
    return refused(param, f"{which}can't be prepared for this model: {why}")


def resized(
    image: PillowImage.Image, part: Image, least: int | None, most: int | None, param: str
) -> PillowImage.Image:
    """Resize a picture as the request asks, then scale it to between `least` and `most` pixels."""
    if part.resize is not None:
        height, width = part.resize
        pictures.check_size(width, height, param)
        image = image.resize((width, height), PillowImage.Resampling.BICUBIC)
    area = image.width * image.height
    if most is not None and area > most:
        return _scaled(image, math.sqrt(most / area), math.floor, param)
    if least is not None and area < least:
        return _scaled(image, math.sqrt(least / area), math.ceil, param)
    return image


def _scaled(
    image: PillowImage.Image, factor: float, rounded: Callable[[float], int], param: str
) -> PillowImage.Image:
    width, height = max(rounded(image.width * factor), 1), max(rounded(image.height * factor), 1)
    pictures.check_size(width, height, param)
    return image.resize((width, height), PillowImage.Resampling.BICUBIC)


def sample_image() -> PillowImage.Image:
    """A picture whose parts differ from each other, to test a processor and a model with."""
    return PillowImage.linear_gradient("L").resize((64, 64)).rotate(30).convert("RGB")


def sample_clip() -> Clip:
    """Four grey frames to test a processor with."""
    return Clip(
        frames=np.full((4, 3, 64, 64), 128, np.uint8), indices=[0, 1, 2, 3], source_frames=4, source_fps=2.0
    )


def digest_of(part: MediaPart, data: bytes, options: ModelOptions) -> bytes:
    """A digest of a medium's content and of all that decides how it is prepared."""
    asked: tuple[Any, ...] = ()
    if isinstance(part, Image):
        asked = (part.detail == "low", part.min_pixels, part.max_pixels, part.resize)
    elif isinstance(part, Video):
        asked = (part.fps, part.max_frames)
    how = repr((type(part).__name__, asked, options.min_pixels, options.max_pixels))
    person = hashlib.blake2b(how.encode(), digest_size=16).digest()
    return hashlib.blake2b(data, digest_size=24, person=person).digest()


def plain_arrays(value: Any) -> Any:
    """MLX arrays and torch tensors as numpy arrays: an MLX array may be read only by the thread that made it, and some
    of transformers' own processors return tensors."""
    match value:
        case mx.array():
            return np.array(value.astype(mx.float32) if value.dtype == mx.bfloat16 else value)
        case dict():
            return {key: plain_arrays(item) for key, item in value.items()}
        case list() | tuple():
            return [plain_arrays(item) for item in value]
        case _:
            return np.asarray(value) if hasattr(value, "__array__") else value

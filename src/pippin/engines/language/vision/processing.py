"""The model's own processor: media to arrays, and to the text that stands for them in a prompt."""

import hashlib
import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from PIL import Image as Pictures

from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Audio, Image, Inline, Video
from pippin.core.errors import ServerError
from pippin.engines import pictures, sound
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.language.vision.checkpoint import marks, read_config
from pippin.engines.language.vision.clips import Clip, FrameRate, read_clip
from pippin.engines.language.vision.media import MediaKind, MediaPart, Medium, PromptMedia, kind_of, place
from pippin.engines.language.vision.pictures import bounds, resized

TYPES = "mm_token_type_ids"
BESIDE = frozenset({"input_ids", "attention_mask", "token_type_ids", TYPES, "num_crops"})
"""What processors give that belongs to their text."""

PLACEHOLDERS: dict[MediaKind, tuple[tuple[str, ...], ...]] = {
    "image": (("boi_token",), ("image_token",)),
    "video": (("vision_start_token", "video_token", "vision_end_token"), ("video_token",)),
    "audio": (("boa_token",), ("audio_token",)),
}
"""Attributes of processors that hold, one after the other, what a medium is called in a prompt; the first that work
count. Where a video's frames stand apart, the marks around it are repeated for each."""

MOST_KEPT_BYTES = 1 << 28
"""Of media that are kept as they were made ready."""

MOST_AUDIO_SECONDS = 30 * 60.0

FAILURES = (
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    RuntimeError,
    ZeroDivisionError,
    OSError,
)
"""What processors raise for sizes and shapes that they can't deal with."""


class _Listener:
    """Stands in for a processor's tokenizer, and keeps the text that it is given."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.heard = ""

    def __call__(self, text: Any = None, **settings: Any) -> Any:
        self.heard = text if isinstance(text, str) else text[0]
        return self._tokenizer(text, **{"add_special_tokens": False, **settings})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


class MediaProcessor:
    """Safe for use from several threads at once."""

    def __init__(self, folder: Path, options: ModelOptions) -> None:
        """Raises what mlx-vlm and transformers raise for a folder that they can't read."""
        import mlx_vlm.utils  # its models replace processors that need torch with their own
        from transformers import AutoProcessor

        config = read_config(folder)
        mlx_vlm.utils.get_model_and_args(config)
        # Said here because mlx-vlm's own processors would run code from the folder if nothing is said.
        self._processor = AutoProcessor.from_pretrained(
            folder, trust_remote_code=options.trust_remote_code, local_files_only=True
        )
        self._listener = _Listener(self._processor.tokenizer)
        self._processor.tokenizer = self._listener
        self._options = options
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, Medium] = OrderedDict()
        self._marks = marks(config)
        self._sizes_itself = "max_pixels" in vars(self._processor.image_processor)
        self._parameters = frozenset(inspect.signature(self._processor.__call__).parameters)
        sampling = mlx_vlm.utils.resolve_video_sampling(self._processor, {})
        self._rate = FrameRate(fps=sampling.fps, least=sampling.min_frames, most=sampling.max_frames)
        self._tokenizer: Tokenizer | None = None
        self.placeholders: dict[MediaKind, str] = {}
        self.samples: dict[MediaKind, Medium] = {}  # small ones, to try the model with
        self.refused: set[MediaKind] = set()  # kinds that the model turned out to get wrong

    @property
    def kinds(self) -> frozenset[MediaKind]:
        return frozenset(self.placeholders) - self.refused

    def use(self, tokenizer: Tokenizer) -> None:
        """Find out, by trying, which media the processor takes and what it calls them."""
        self._tokenizer = tokenizer
        trials: dict[MediaKind, Callable[[], dict[str, Any]]] = {
            "image": lambda: {"images": [_shaded()]},
            "video": lambda: self._filmed(_still()),
            "audio": lambda: self._heard(np.zeros(self._audio_rate, np.float32)),
        }
        for kind, trial in trials.items():
            for attributes in PLACEHOLDERS[kind]:
                names = [getattr(self._processor, attribute, None) for attribute in attributes]
                known = [
                    name for name in names if isinstance(name, str) and tokenizer.single(name) is not None
                ]
                if len(known) < len(names) or not self._marks[kind]:
                    continue
                try:
                    sample = self._made(kind, b"", "".join(known), trial())
                    if sample.places:
                        self.placeholders[kind], self.samples[kind] = "".join(known), sample
                        break
                except FAILURES:
                    continue

    def place(self, media: list[Medium], tokens: list[int]) -> PromptMedia | None:
        return place(media, tokens, frozenset().union(*(self._marks[kind] for kind in self.placeholders)))

    def process(self, part: MediaPart, param: str) -> Medium:
        """Raises `ServerError` naming `param`."""
        kind = kind_of(part)
        if kind not in self.kinds:
            raise ServerError(
                "unsupported",
                f"This model takes no {kind}, and '{param}' is one. Leave it out, or choose a model that takes it.",
                param,
            )
        if not isinstance(part.source, Inline):
            raise ServerError(
                "invalid_request", f"{param} was not fetched; send the bytes as a data: URI.", param
            )
        digest = self._digest(part, part.source.data)
        with self._lock:
            if (kept := self._kept.get(digest)) is not None:
                self._kept.move_to_end(digest)
                return kept
        given = self._given(part, part.source.data, param)
        try:
            medium = self._made(kind, digest, self.placeholders[kind], given)
        except FAILURES as error:
            raise ServerError(
                "invalid_request", f"{param} can't be prepared for this model: {error}", param
            ) from error
        with self._lock:
            self._kept[digest] = medium
            while len(self._kept) > self._options.vision_cache_size or self._kept_bytes() > MOST_KEPT_BYTES:
                self._kept.popitem(last=False)
        return medium

    def _kept_bytes(self) -> int:
        return sum(medium.bytes for medium in self._kept.values())

    def _digest(self, part: MediaPart, data: bytes) -> bytes:
        how = repr((type(part).__name__, _manner(part), self._options.min_pixels, self._options.max_pixels))
        return hashlib.blake2b(
            data, digest_size=24, person=hashlib.blake2b(how.encode(), digest_size=16).digest()
        ).digest()

    def _given(self, part: MediaPart, data: bytes, param: str) -> dict[str, Any]:
        """What the processor is called with, beside the text."""
        match part:
            case Image():
                return self._picture(part, data, param)
            case Video():
                rate = FrameRate(
                    fps=part.fps or self._rate.fps,
                    least=min(self._rate.least, part.max_frames or self._rate.most),
                    most=min(part.max_frames or self._rate.most, self._rate.most),
                )
                return self._filmed(read_clip(data, rate, param))
            case Audio():
                heard = sound.decode(data, self._audio_rate, param=param, longest=MOST_AUDIO_SECONDS)
                return self._heard(heard)

    @property
    def _audio_rate(self) -> int:
        """Samples in a second that the model hears."""
        return int(self._processor.feature_extractor.sampling_rate)

    def _heard(self, samples: sound.Samples) -> dict[str, Any]:
        return {("audios" if "audios" in self._parameters else "audio"): [samples]}

    def _filmed(self, clip: Clip) -> dict[str, Any]:
        from mlx_vlm.utils import VideoMetadata

        told: dict[str, Any] = {
            "fps": [clip.fps],
            "video_metadata": [VideoMetadata(clip.source_frames, clip.source_fps, clip.indices)],
        }
        return {
            "videos": [clip.frames],
            **{name: value for name, value in told.items() if name in self._parameters},
        }

    def _picture(self, part: Image, data: bytes, param: str) -> dict[str, Any]:
        least, most = bounds(part, self._options.min_pixels, self._options.max_pixels, param)
        image = pictures.decode(data, param=param).convert("RGB")
        if not self._sizes_itself:
            return {"images": [resized(image, part, least, most, param)]}
        limits = {"min_pixels": least, "max_pixels": most}
        return {
            "images": [resized(image, part, None, None, param)],
            **{name: limit for name, limit in limits.items() if limit is not None},
        }

    def _made(self, kind: MediaKind, digest: bytes, placeholder: str, given: dict[str, Any]) -> Medium:
        assert self._tokenizer is not None
        with self._lock:
            made = self._processor(text=[placeholder], **given)
            text = self._listener.heard
        tokens = tuple(self._tokenizer.literals.encode(text))
        wanted = self._marks[kind]
        return Medium(
            kind=kind,
            digest=digest,
            text=text,
            tokens=tokens,
            places=tuple(place for place, token in enumerate(tokens) if token in wanted),
            arrays={
                name: _plain(value)
                for name, value in made.items()
                if name not in BESIDE and value is not None
            },
            typed=TYPES in made,
        )


def _shaded() -> Pictures.Image:
    """A picture to try a processor and a model with, of parts that differ."""
    return Pictures.linear_gradient("L").resize((64, 64)).rotate(30).convert("RGB")


def _still() -> Clip:
    """A clip to try a processor with."""
    return Clip(
        frames=np.full((4, 3, 64, 64), 128, np.uint8), indices=[0, 1, 2, 3], source_frames=4, source_fps=2.0
    )


def _manner(part: MediaPart) -> tuple[Any, ...]:
    """How a part wants to be prepared."""
    match part:
        case Image():
            return (part.detail == "low", part.min_pixels, part.max_pixels, part.resize)
        case Video():
            return (part.fps, part.max_frames)
        case Audio():
            return ()


def _plain(value: Any) -> Any:
    """Arrays of this thread as numpy's, which any thread may read."""
    match value:
        case mx.array():
            return np.array(value)
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value

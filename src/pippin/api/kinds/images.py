"""Bodies of `/v1/images/generations` and `/v1/images/edits`, in OpenAI's form."""

import base64
import math
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import BOOKKEEPING, Contract, invalid, unsupported
from pippin.api.dialects.shared.frames import typed_frame
from pippin.api.kinds.named_events import NamedEvents
from pippin.core.events import Accepted, Event, Picture, Progress
from pippin.core.tasks import GenerateImages

LARGEST_SIDE: Final = 4096
MOST_PIXELS: Final = 16 << 20
SIDE_STEP: Final = 16
MOST_PROMPT: Final = 32_000
MOST_INPUTS: Final = 16
SIZE: Final = re.compile(r"(\d{1,5})x(\d{1,5})")

Quality = Literal["auto", "low", "medium", "high", "standard", "hd"]
EFFORT: Final[dict[str | None, Literal["low", "medium", "high"]]] = {
    "low": "low",
    "medium": "medium",
    "high": "high",
    "hd": "high",
}


class ImageFields(Struct, kw_only=True, omit_defaults=True):
    prompt: Annotated[
        Annotated[str, Meta(min_length=1, max_length=MOST_PROMPT)],
        Meta(description="What is to be seen."),
    ]
    model: Annotated[Name | None, Meta(description="Name of the model.")] = None
    n: Annotated[Annotated[int, Meta(ge=1, le=10)] | None, Meta(description="How many pictures.")] = None
    size: Annotated[
        str | None, Meta(description="WIDTHxHEIGHT, both multiples of 16; auto is the model's own.")
    ] = None
    width: Annotated[int | None, Meta(description="Instead of `size`.")] = None
    height: Annotated[int | None, Meta(description="Instead of `size`.")] = None
    quality: Annotated[
        Quality | None, Meta(description="low takes half the model's steps, high one and a half.")
    ] = None
    response_format: Annotated[
        Literal["b64_json", "url"] | None,
        Meta(description="b64_json if not set; an address is good for an hour."),
    ] = None
    output_format: Annotated[Literal["png", "jpeg", "webp"] | None, Meta(description="png if not set.")] = (
        None
    )
    output_compression: Annotated[
        Annotated[int, Meta(ge=0, le=100)] | None, Meta(description="Quality of jpeg and webp.")
    ] = None
    background: Annotated[
        Literal["auto", "opaque", "transparent"] | None, Meta(description="Only auto or opaque.")
    ] = None
    stream: Annotated[bool | None, Meta(description="Send pictures as events when they are ready.")] = None
    progress: Annotated[bool | None, Meta(description="Events for each step too, with `stream`.")] = None
    steps: Annotated[
        Annotated[int, Meta(ge=1, le=200)] | None,
        Meta(description="Diffusion steps; the model's own if not set."),
    ] = None
    guidance: Annotated[
        Annotated[float, Meta(ge=0, le=100)] | None, Meta(description="How closely to follow the prompt.")
    ] = None
    guidance_scale: Annotated[
        Annotated[float, Meta(ge=0, le=100)] | None, Meta(description="mlx-openai-server's name for it.")
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0, lt=2**32)] | None,
        Meta(description="Same seed, same picture; the next picture of the request has the next seed."),
    ] = None
    negative_prompt: Annotated[
        Annotated[str, Meta(max_length=MOST_PROMPT)] | None,
        Meta(description="What is not to be seen, for models that are told."),
    ] = None


class ImageRequest(ImageFields, kw_only=True, omit_defaults=True):
    """A picture from a text."""


class ImageAddress(Struct, kw_only=True):
    image_url: str | None = None
    file_id: str | None = None


class ImageEditRequest(ImageFields, kw_only=True, omit_defaults=True):
    """A picture from pictures: as a form with files `image` (or `image[]`), or as JSON."""

    image: Annotated[
        str | tuple[str, ...] | None, Meta(description="In JSON: data URIs or addresses of pictures.")
    ] = None
    images: Annotated[
        tuple[ImageAddress, ...] | None, Meta(description="In JSON, as OpenAI has it: `image_url` of each.")
    ] = None
    strength: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None, Meta(description="How much of the picture may stay.")
    ] = None
    input_fidelity: Annotated[
        Literal["low", "high"] | None, Meta(description="Accepted: models here look at all they can.")
    ] = None


ACCEPTED: Final = {
    "user": BOOKKEEPING,
    "safety_identifier": BOOKKEEPING,
    "moderation": "Nothing judges pictures here.",
}
NO_MASK: Final = "say in `prompt` what is to change."
REFUSED: Final = {
    "style": "describe the style in `prompt`.",
    "complexity": "use `quality` or `steps`.",
    "svg": "pictures are made of pixels.",
    "frame_count": "moving pictures are not made.",
    "frame_duration_ms": "moving pictures are not made.",
    "mask": NO_MASK,
    "markup": NO_MASK,
    "partial_images": "there are no previews; with `stream`, finished pictures are sent one by one.",
    "output_path": "the server writes no files; take the picture from the answer.",
    "output_dir": "the server writes no files; take the picture from the answer.",
    "auto_json_caption": "write the whole `prompt`.",
    "prompt_expansion_model": "no language model rewrites prompts here; write the whole `prompt`.",
    "upsample_prompt": "no language model rewrites prompts here; write the whole `prompt`.",
    "boxes": "describe places in `prompt`.",
    "output_resolution": "use `size`.",
    "use_kv_cache": "there is no such cache.",
}
GENERATIONS: Final = Contract(ImageRequest, ACCEPTED, REFUSED)
EDITS: Final = Contract(ImageEditRequest, ACCEPTED, REFUSED)
CONTRACTS: Final = {
    "POST /v1/images/generations": GENERATIONS,
    "POST /v1/images/edits (form with `image`, or JSON)": EDITS,
}


def task_of(fields: ImageFields, images: Sequence[bytes] = ()) -> GenerateImages:
    if fields.background == "transparent":
        raise unsupported("background", "pictures are opaque; leave it out.")
    if fields.stream and fields.response_format == "url":
        raise invalid("response_format", "must be b64_json with `stream`.")
    if len(images) > MOST_INPUTS:
        raise invalid("image", f"must not be more than {MOST_INPUTS} pictures.")
    output = fields.output_format or "png"
    if fields.output_compression is not None and output == "png":
        raise invalid("output_compression", "needs `output_format` jpeg or webp.")
    width, height = size_of(fields)
    guidance = fields.guidance_scale if fields.guidance is None else fields.guidance
    return GenerateImages(
        prompt=fields.prompt,
        n=fields.n or 1,
        width=width,
        height=height,
        steps=fields.steps,
        guidance=guidance,
        seed=fields.seed,
        negative_prompt=fields.negative_prompt or None,
        images=tuple(images),
        strength=fields.strength if isinstance(fields, ImageEditRequest) else None,
        format=output,
        quality=fields.output_compression,
        effort=EFFORT.get(fields.quality),
    )


def size_of(fields: ImageFields) -> tuple[int | None, int | None]:
    if fields.size is None or fields.size == "auto":
        width, height = fields.width, fields.height
        if (width is None) != (height is None):
            raise invalid("height" if height is None else "width", "is required with the other one.")
        if width is None or height is None:
            return None, None
        names = ("width", "height")
    else:
        found = SIZE.fullmatch(fields.size)
        if found is None:
            raise invalid("size", "must be auto or WIDTHxHEIGHT, such as 1024x1024.")
        width, height = int(found[1]), int(found[2])
        names = ("size", "size")
    for name, side in zip(names, (width, height), strict=True):
        if not SIDE_STEP <= side <= LARGEST_SIDE or side % SIDE_STEP:
            raise invalid(name, f"must be multiples of {SIDE_STEP} up to {LARGEST_SIDE}.")
    if width * height > MOST_PIXELS:
        raise invalid(names[0], f"must not have more than {MOST_PIXELS} pixels.")
    return width, height


def addresses_of(fields: ImageEditRequest) -> list[str]:
    """The URLs of the pictures in a JSON body. Raises `ServerError`."""
    given = [fields.image] if isinstance(fields.image, str) else list(fields.image or ())
    for place, item in enumerate(fields.images or ()):
        given.append(_address(item, f"images[{place}]"))
    if not given:
        raise invalid("image", "is required.")
    return given


def _address(item: ImageAddress, path: str) -> str:
    if item.file_id is not None:
        raise unsupported(f"{path}.file_id", "there are no stored files; send `image_url` with a data URI.")
    if item.image_url is None:
        raise invalid(f"{path}.image_url", "is required.")
    return item.image_url


LIFETIME: Final = 3600.0  # seconds that a URL is valid, as in OpenAI's API
MOST_BYTES: Final = 256 << 20  # of all stored pictures


class ImageItem(Struct, kw_only=True, omit_defaults=True):
    b64_json: str | None = None
    url: str | None = None
    seed: int | None = None


class InputDetails(Struct, kw_only=True):
    image_tokens: int = 0
    text_tokens: int


class ImageUsage(Struct, kw_only=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails


class ImagesReply(Struct, kw_only=True):
    created: int
    data: list[ImageItem]
    output_format: str
    size: str
    background: Literal["opaque"] = "opaque"
    usage: ImageUsage


def usage_of(prompt_tokens: int, pictures: Sequence[Picture]) -> ImageUsage:
    """Tokens of a prompt and its pictures: one for each square of 16 by 16 pixels, the unit of diffusion models."""
    tokens = sum(
        math.ceil(picture.width / SIDE_STEP) * math.ceil(picture.height / SIDE_STEP) for picture in pictures
    )
    return ImageUsage(
        input_tokens=prompt_tokens,
        output_tokens=tokens,
        total_tokens=prompt_tokens + tokens,
        input_tokens_details=InputDetails(text_tokens=prompt_tokens),
    )


def draw(
    task: GenerateImages,
    events: Sequence[Event],
    prompt_tokens: int,
    address: Callable[[bytes], str] | None,
) -> ImagesReply:
    """A whole reply. `address` stores a picture and returns its URL; if None, the reply contains the pictures."""
    pictures = [event for event in events if isinstance(event, Picture)]
    pictures.sort(key=lambda picture: picture.index)
    data = [
        ImageItem(b64_json=base64.b64encode(picture.data).decode(), seed=picture.seed)
        if address is None
        else ImageItem(url=address(picture.data), seed=picture.seed)
        for picture in pictures
    ]
    return ImagesReply(
        created=int(time.time()),
        data=data,
        output_format=task.format,
        size=f"{pictures[0].width}x{pictures[0].height}",
        usage=usage_of(prompt_tokens, pictures),
    )


class ImageEvents(NamedEvents):
    """Encodes OpenAI's events: each picture when it is ready. Steps are comments, or events if the client asked."""

    def __init__(self, fields: ImageFields, task: GenerateImages, *, edit: bool) -> None:
        self._prefix = "image_edit" if edit else "image_generation"
        self._quality = fields.quality if fields.quality in ("low", "medium", "high") else "auto"
        self._format = task.format
        self._progress = bool(fields.progress)
        self._prompt_tokens = 0

    def start(self, accepted: Sequence[Accepted]) -> bytes:
        self._prompt_tokens = accepted[0].prompt_tokens
        return b""

    def event(self, event: Event, request: int = 0) -> bytes:
        match event:
            case Picture():
                usage = usage_of(self._prompt_tokens, [event])
                return self._frame("completed", {**self._body(event), "usage": usage})
            case Progress(done=done, total=total) if self._progress:
                return self._frame("progress", {"step": done, "steps": total})
            case Progress(done=done, total=total):
                return b": step %d of %d\n\n" % (done, total)
            case _:
                return b""

    def _body(self, picture: Picture) -> dict[str, Any]:
        return {
            "b64_json": base64.b64encode(picture.data).decode(),
            "created_at": int(time.time()),
            "size": f"{picture.width}x{picture.height}",
            "quality": self._quality,
            "background": "opaque",
            "output_format": self._format,
            "index": picture.index,
        }

    def _frame(self, name: str, payload: dict[str, Any]) -> bytes:
        return typed_frame(f"{self._prefix}.{name}", **payload)


@dataclass(frozen=True, slots=True)
class KeptPicture:
    data: bytes
    media: str
    until: float


class PictureShelf:
    """Keeps pictures in memory for clients that asked for URLs; the oldest are evicted when it is full.

    Names have 128 random bits, so nobody can guess the name of another client's picture.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, most_bytes: int = MOST_BYTES) -> None:
        self._clock = clock
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, KeptPicture] = OrderedDict()
        self._bytes = 0

    def put(self, data: bytes, format: str) -> str:
        """Store a picture. Returns its name, which is valid for an hour."""
        name = f"{secrets.token_urlsafe(16)}.{format}"
        self._kept[name] = KeptPicture(data, f"image/{format}", self._clock() + LIFETIME)
        self._bytes += len(data)
        self._drop_old()
        return name

    def get(self, name: str) -> KeptPicture | None:
        self._drop_old()
        return self._kept.get(name)

    def _drop_old(self) -> None:
        now = self._clock()
        while self._kept:
            oldest = next(iter(self._kept.values()))
            if oldest.until > now and (self._bytes <= self._most_bytes or len(self._kept) == 1):
                return
            self._kept.popitem(last=False)
            self._bytes -= len(oldest.data)

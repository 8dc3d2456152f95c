"""Replies of `/v1/images/...` in OpenAI's form, whole and streamed, and the store of pictures served by URL."""

import base64
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from msgspec import Struct

from pippin.api.dialects.shared.frames import typed_frame
from pippin.api.kinds.images import SIDE_STEP, ImageFields
from pippin.api.kinds.named_events import NamedEvents
from pippin.core.events import Accepted, Event, Picture, Progress
from pippin.core.tasks import GenerateImages

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

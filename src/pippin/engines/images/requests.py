"""Sizes, steps by quality, pictures as files, and counts of tokens."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.core.tasks import GenerateImages, Task
from pippin.engines import pictures

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE_STEP = 16
"""Width and height are multiples of this many pixels, the side of a token's patch."""

DEFAULT_PIXELS = 1024 * 1024
"""The area of a picture when the request names no size."""

STEPS_FACTOR = {"low": 0.5, "medium": 1.0, "high": 1.5, None: 1.0}
"""The factor of the model's number of steps for each `quality` of OpenAI's API."""


def request_of(task: Task, info: ModelInfo) -> GenerateImages:
    """The task, if it is one for an image model. Raises `ServerError` for any other."""
    if not isinstance(task, GenerateImages):
        raise ServerError("invalid_request", f"{info.id} makes pictures; it does nothing else.", "model")
    return task


def decoded(task: GenerateImages, *, keep_alpha: bool) -> "tuple[list[Image], int]":
    """The pictures that a task starts from, and how many words it has. Raises `ServerError`."""
    given = [
        pictures.decode(data, param=f"image[{index}]", keep_alpha=keep_alpha)
        for index, data in enumerate(task.images)
    ]
    return given, len(task.prompt.split()) + len((task.negative_prompt or "").split())


def size_of(task: GenerateImages, given: "list[Image]") -> tuple[int, int]:
    """Width and height that the request names, or the proportions of its first picture at about `DEFAULT_PIXELS`."""
    if task.width is not None and task.height is not None:
        return task.width, task.height
    if not given:
        side = math.isqrt(DEFAULT_PIXELS)
        return side, side
    width, height = given[0].size
    scale = math.sqrt(DEFAULT_PIXELS / (width * height))
    sides = [max(SIDE_STEP, round(side * scale / SIDE_STEP) * SIDE_STEP) for side in (width, height)]
    return min(sides[0], 4096), min(sides[1], 4096)


def at_most(pictures: int) -> str:
    """How many pictures a model takes, as a sentence says it."""
    return "one picture" if pictures == 1 else f"{pictures} pictures at most"


def written(given: "list[Image]", folder: Path) -> list[Path]:
    """Write the pictures that a request starts from into a folder, from which the pipelines read them."""
    paths = []
    for index, image in enumerate(given):
        path = folder / f"{index}.png"
        image.save(path, "PNG")
        paths.append(path)
    return paths


def picture_tokens(width: int, height: int) -> int:
    """The tokens that one picture counts as in a request's usage."""
    return (width // SIDE_STEP) * (height // SIDE_STEP)

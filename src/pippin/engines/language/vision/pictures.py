"""The sizes that pictures are brought to before a model's own processor sees them."""

import math
from collections.abc import Callable

from PIL import Image

from pippin.core import conversation
from pippin.core.errors import ServerError
from pippin.engines.pictures import check_size

LOW_DETAIL = 512 * 512
"""Most pixels with `detail: low`."""

MOST_ASKED_PIXELS = 1 << 24
"""Most that a request may bring a picture to: what the model computes grows with it."""


def bounds(
    part: conversation.Image, least: int | None, most: int | None, param: str
) -> tuple[int | None, int | None]:
    """The areas in pixels that a picture is brought within: what the request asks for inside the model's options."""
    for name, asked in (("min_pixels", part.min_pixels), ("max_pixels", part.max_pixels)):
        if asked is not None and not 0 < asked <= MOST_ASKED_PIXELS:
            raise ServerError(
                "invalid_request",
                f"'{name}' of {param} is {asked}; it may be from 1 to {MOST_ASKED_PIXELS}.",
                param,
            )
    asked_most = [limit for limit in (part.max_pixels, most) if limit is not None]
    if part.detail == "low":
        asked_most.append(LOW_DETAIL)
    most = min(asked_most, default=None)
    least = part.min_pixels or least
    if least is not None and most is not None and least > most:
        if part.min_pixels is not None:
            message = f"{param} asks for {least} pixels at least, and {most} are the most."
            raise ServerError("invalid_request", message, param)
        least = most
    return least, most


def resized(
    image: Image.Image, part: conversation.Image, least: int | None, most: int | None, param: str
) -> Image.Image:
    """As the request and the model's options have it; `least` and `most` are areas in pixels."""
    if part.resize is not None:
        height, width = part.resize
        if height < 1 or width < 1:
            raise ServerError("invalid_request", f"{param} asks to be resized to nothing.", param)
        check_size(width, height, param)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    area = image.width * image.height
    if most is not None and area > most:
        return _scaled(image, math.sqrt(most / area), math.floor, param)
    if least is not None and area < least:
        return _scaled(image, math.sqrt(least / area), math.ceil, param)
    return image


def _scaled(image: Image.Image, factor: float, rounded: Callable[[float], int], param: str) -> Image.Image:
    width, height = max(rounded(image.width * factor), 1), max(rounded(image.height * factor), 1)
    check_size(width, height, param)
    return image.resize((width, height), Image.Resampling.BICUBIC)

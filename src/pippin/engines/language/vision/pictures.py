"""Pictures from bytes that strangers send: decoded within limits, turned upright, in RGB."""

import io
import math
from collections.abc import Callable

from PIL import Image, ImageOps, UnidentifiedImageError

from pippin.core import conversation
from pippin.core.errors import ServerError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MOST_PIXELS = 64_000_000
LOW_DETAIL = 512 * 512
"""Most pixels with `detail: low`."""

MOST_ASKED_PIXELS = 1 << 24
"""Most that a request may bring a picture to: what the model computes grows with it."""

MOST_SIDE = 65_500


def decode_picture(data: bytes, param: str) -> Image.Image:
    """The first frame, upright. Raises `ServerError` naming `param`."""
    if not data:
        raise ServerError("invalid_request", f"{param} is an empty file; send a picture.", param)
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        _check_size(image.width, image.height, param)
        image.load()
        return (ImageOps.exif_transpose(image) or image).convert("RGB")
    except ServerError:
        raise
    except UnidentifiedImageError as error:
        message = (
            f"{param} is no picture of a kind that is read here ({', '.join(FORMATS)}); send one of these."
        )
        raise ServerError("invalid_request", message, param) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(param) from error
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, TypeError, MemoryError) as error:
        # Pillow's decoders raise all of these for files that are cut off or damaged.
        message = f"{param} is damaged or cut off, and can't be read as a picture; send the whole file."
        raise ServerError("invalid_request", message, param) from error


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
        _check_size(width, height, param)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    area = image.width * image.height
    if most is not None and area > most:
        return _scaled(image, math.sqrt(most / area), math.floor, param)
    if least is not None and area < least:
        return _scaled(image, math.sqrt(least / area), math.ceil, param)
    return image


def _scaled(image: Image.Image, factor: float, rounded: Callable[[float], int], param: str) -> Image.Image:
    width, height = max(rounded(image.width * factor), 1), max(rounded(image.height * factor), 1)
    _check_size(width, height, param)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def _check_size(width: int, height: int, param: str) -> None:
    if width * height > MOST_PIXELS or max(width, height) > MOST_SIDE:
        raise _too_large(param)


def _too_large(param: str) -> ServerError:
    return ServerError(
        "invalid_request",
        f"{param} has too many pixels; {MOST_PIXELS // 1_000_000} million is the most. Send a smaller picture.",
        param,
    )

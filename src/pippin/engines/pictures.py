"""Decodes pictures from clients within limits, and encodes those that models make, through Pillow."""

import io
import warnings
from typing import TYPE_CHECKING, Literal

from pippin.core.errors import ServerError

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS = 64 << 20
"""Of one picture, before anything of it is decoded."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
PictureFormat = Literal["png", "jpeg", "webp"]


def decode(data: bytes, *, param: str, most_pixels: int = MOST_PIXELS) -> "Image":
    """The (first) picture, upright, as RGBA if it has an alpha channel and RGB otherwise.

    Raises `ServerError` for what is no picture, is damaged, or is too large.
    """
    from PIL import Image, ImageOps

    refusal = ServerError(
        "invalid_request",
        f"{param} is no picture that can be read; send a whole png, jpeg or webp file.",
        param,
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes, which are checked here
            with Image.open(io.BytesIO(data), formats=FORMATS) as found:
                width, height = found.size
                if width * height > most_pixels:
                    raise ServerError(
                        "too_large",
                        f"{param} has {width}x{height} pixels; send at most {most_pixels}.",
                        param,
                    )
                if min(width, height) < 1:
                    raise refusal
                found.load()
                upright = ImageOps.exif_transpose(found)
                return upright.convert("RGBA" if upright.has_transparency_data else "RGB")
    except ServerError:
        raise
    except Image.DecompressionBombError as error:
        raise ServerError(
            "too_large", f"{param} has too many pixels; send at most {most_pixels}.", param
        ) from error
    # Pillow's readers raise whatever a damaged file leads them to.
    except (
        OSError,
        SyntaxError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        EOFError,
        MemoryError,
    ) as error:
        raise refusal from error
    except Exception as error:  # zlib.error, struct.error and their like
        raise refusal from error


def encode(picture: "Image", format: PictureFormat, quality: int | None) -> bytes:
    file = io.BytesIO()
    rgb = picture.convert("RGB")
    if format == "png":
        rgb.save(file, "PNG")
    else:
        rgb.save(file, format.upper(), quality=90 if quality is None else max(1, quality))
    return file.getvalue()

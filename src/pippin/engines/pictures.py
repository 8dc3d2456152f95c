"""Pictures as bytes, through Pillow: clients' pictures are decoded within limits, models' pictures are encoded."""

import io
import warnings
from typing import TYPE_CHECKING, Literal

import numpy as np

from pippin.core.errors import ServerError
from pippin.engines.refusals import refused

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

MOST_PIXELS = 64_000_000
"""The most pixels of one picture, checked before any of them is decoded."""

MOST_SIDE = 65_500
"""The most pixels of one side; JPEG can hold no more than 65,535."""

END_OF_JPEG = b"\xff\xd9"

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
PictureFormat = Literal["png", "jpeg", "webp"]


def decode(data: bytes, *, param: str, most_pixels: int = MOST_PIXELS, keep_alpha: bool = False) -> "Image":
    """Decode the first frame of a picture, turned upright, as RGB: transparency shows white, and a damaged file what it
    has, as viewers show them.

    With `keep_alpha`, a picture that has transparency is RGBA. Raises `ServerError` naming `param` for bytes that are
    no picture, for a file of which nothing can be shown and for one too large.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            # Pillow warns of large sizes, which `check_size` refuses.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=FORMATS) as found:
                check_size(*found.size, param, most_pixels=most_pixels)
                upright = ImageOps.exif_transpose(_in_bytes(_loaded(found, data), param))
                keep = keep_alpha and upright.has_transparency_data
                return upright.convert("RGBA") if keep else _on_white(upright)
    except ServerError:
        raise
    except UnidentifiedImageError as error:
        raise refused(
            param, f"is no picture of a kind that is read here ({', '.join(FORMATS)}); send one of these."
        ) from error
    except Image.DecompressionBombError as error:
        raise _too_large(param, most_pixels) from error
    except Exception as error:
        raise refused(
            param, "is damaged or cut off, and can't be read as a picture; send the whole file."
        ) from error


def _loaded(found: "ImageFile", data: bytes) -> "ImageFile":
    """A picture with its pixels; of a damaged file those that were decoded. Raises what Pillow raises where all of them
    are alike, as then nothing can be seen."""
    try:
        found.load()
    # Pillow's readers have no common error: a damaged file may raise anything.
    except Exception:
        if found.format == "JPEG" and not data.endswith(END_OF_JPEG):
            # The decoder gives its last rows, or a coarse picture, when it sees an end.
            return _loaded(type(found)(io.BytesIO(data + END_OF_JPEG)), data + END_OF_JPEG)
        found.tile = []  # no more is decoded
        if found.getcolors(1) is not None:
            raise
    return found


def _in_bytes(picture: "Image", param: str) -> "Image":
    """A 16-bit grey picture reduced to its upper 8 bits; Pillow would turn all but the darkest greys white. Raises
    `ServerError` for larger integers and floats, of which no file tells what is white."""
    from PIL import Image

    if picture.mode in ("F", "I"):
        raise refused(
            param, "has 32 bits for each grey, whose white is not told; send a picture of 8 or 16 bits."
        )
    if not picture.mode.startswith("I;16"):
        return picture
    values = np.asarray(picture)
    grey = Image.fromarray((values >> 8).astype(np.uint8))
    if (clear := picture.info.pop("transparency", None)) is not None:
        grey.putalpha(Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
    grey.info = picture.info
    return grey


def _on_white(picture: "Image") -> "Image":
    from PIL import Image

    if not picture.has_transparency_data:
        return picture.convert("RGB")
    picture = picture.convert("RGBA")
    ground = Image.new("RGB", picture.size, "white")
    ground.paste(picture, mask=picture)
    return ground


def check_size(width: int, height: int, param: str, *, most_pixels: int = MOST_PIXELS) -> None:
    """Raises `ServerError` naming `param` for a picture with more pixels, or a longer side, than is accepted."""
    if width * height > most_pixels or max(width, height) > MOST_SIDE:
        raise _too_large(param, most_pixels)


def _too_large(param: str, most: int) -> ServerError:
    return refused(
        param, f"has too many pixels; {most // 1_000_000} million is the most. Send a smaller one."
    )


def encode(picture: "Image", format: PictureFormat, quality: int | None) -> bytes:
    """Encode a picture, with its alpha channel where the format has one and on white elsewhere. `quality` is from 0 to
    100, 90 if None; PNG has none, and ignores it."""
    file = io.BytesIO()
    picture = _on_white(picture) if picture.mode != "RGBA" or format == "jpeg" else picture
    picture.save(file, format.upper(), quality=90 if quality is None else max(1, quality))
    return file.getvalue()

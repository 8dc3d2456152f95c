"""Pictures of Llama 4 and Step 3.7 as tiles, as transformers cuts them (`Llama4ImageProcessor`, on which its weights
were trained, `Step3p7ImageProcessor`).

mlx-vlm 0.7.10 writes a prompt for the tiles and, if there are several, for the whole picture beside them, but leaves
the whole picture out of the pixels: its model then reads the features of the next picture instead, and past the end of
the array for the last one. It also knows only eight of the sizes, and stretches pictures to them. It cuts Step 3.7's
pictures after filling them up to a square.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image as PillowImage

from pippin.engines.language.vision.checkpoint import family_of

Size = tuple[int, int]
"""Height and width."""


def cut_into_tiles(processor: Any, config: dict[str, Any]) -> None:
    """Let the processor of a Llama 4 or Step 3.7 prepare pictures as here. Other processors stay as they are."""
    match family_of(config):
        case "llama4":
            own = processor.image_processor
            grids = canvases(own.max_patches)
            own._get_best_resolution = lambda width, height: best_canvas((height, width), grids, own.size)
            own._split_into_tiles = lambda picture, grid: cut(picture.convert("RGB"), grid, own.size)
        case "step3p7":
            processor.patcher = in_windows


def canvases(most: int) -> list[Size]:
    """The rows and columns of up to `most` tiles, in the order in which transformers tries them."""
    counts = [(count, rows) for count in range(most, 0, -1) for rows in range(1, count + 1)]
    grids = [(rows, count // rows) for count, rows in counts if count % rows == 0]
    shapes = list(dict.fromkeys(rows / columns for rows, columns in grids))
    return sorted(grids, key=lambda grid: shapes.index(grid[0] / grid[1]))


def best_canvas(picture: Size, grids: Sequence[Size], side: int) -> Size:
    """The rows and columns of tiles that a picture is cut into: those that enlarge it least, or else shrink it least,
    and the fewest of these."""
    height, width = picture
    scales = np.array(
        [min(rows * side / height, columns * side / width) for rows, columns in grids], np.float32
    )
    enlarging = scales[scales >= 1]
    chosen = enlarging.min() if enlarging.size else scales.max()
    alike = [grid for grid, scale in zip(grids, scales, strict=True) if scale == chosen]
    return min(alike, key=lambda grid: grid[0] * grid[1])


def cut(picture: PillowImage.Image, grid: Size, side: int) -> list[PillowImage.Image]:
    """The tiles of a picture, row by row, and if there are several, the whole picture as one more tile.

    A picture keeps its proportions; black fills the canvas below it and to its right. It is enlarged to one tile at
    most.
    """
    rows, columns = grid
    height = min(max(picture.height, side), rows * side)
    width = min(max(picture.width, side), columns * side)
    canvas = PillowImage.new("RGB", (columns * side, rows * side))
    canvas.paste(_resized(picture, _within(picture, (height, width))), (0, 0))
    tiles = [
        canvas.crop((column * side, row * side, (column + 1) * side, (row + 1) * side))
        for row in range(rows)
        for column in range(columns)
    ]
    return [*tiles, _resized(picture, (side, side))] if len(tiles) > 1 else tiles


def _within(picture: PillowImage.Image, most: Size) -> Size:
    """The largest size of the picture's proportions that is not above `most`."""
    by_height, by_width = most[0] / picture.height, most[1] / picture.width
    if by_width < by_height:
        height, width = min(math.floor(picture.height * by_width), most[0]), most[1]
    else:
        height, width = most[0], min(math.floor(picture.width * by_height), most[1])
    return max(height, 1), max(width, 1)


def _resized(picture: PillowImage.Image, size: Size) -> PillowImage.Image:
    return picture.resize((size[1], size[0]), PillowImage.Resampling.BILINEAR)


def in_windows(
    picture: PillowImage.Image,
) -> tuple[PillowImage.Image, list[PillowImage.Image], list[bool] | None]:
    """A picture of Step 3.7, its windows row by row, and after which of these a row ends that is not the last.

    Replaces the patcher in mlx-vlm's `Step3VLProcessor`, which resizes all of them to what its encoder takes.
    """
    from mlx_vlm.models.step3p7.processing_step3p7 import ImagePatcher

    own: Any = ImagePatcher()
    if min(picture.size) < 32 and max(picture.size) > 4 * min(picture.size):
        picture = own.square_pad(picture)
    size = own._preprocess_size(*picture.size)
    side = own.determine_window_size(max(size), min(size))
    if not side:
        return _resized(picture, size[::-1]), [], None
    width, height = (
        each if each < side else side * (each // side + (each % side > 0.2 * side)) for each in size
    )
    columns, rows = max(width // side, 1), max(height // side, 1)
    whole = _resized(picture, (height, width))
    windows = [
        whole.crop((x * side, y * side, min((x + 1) * side, width), min((y + 1) * side, height)))
        for y in range(rows)
        for x in range(columns)
    ]
    ends = [n % columns == 0 and n < len(windows) for n in range(1, len(windows) + 1)]
    return _resized(picture, size[::-1]), windows, ends

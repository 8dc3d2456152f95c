"""HunYuanVL's pictures: the positions of their patches are read from a table between its places as transformers reads
them, and each sees itself alone.

mlx-vlm 0.7.10 counts a tenth of a patch more than a picture has, goes beyond the table at its upper and left edge, and
has all pictures of a prompt see each other.
"""

import mlx.core as mx
import numpy as np
from mlx_vlm.models.hunyuan_vl.vision import PatchEmbed, VisionModel

from pippin.engines.language.upstream.mends import exchanged
from pippin.engines.language.upstream.pictures import cubic, linear


class InPlaces(PatchEmbed):  # type: ignore[misc] # mlx-vlm has no types
    def _interpolate_pos_embed(self, table: mx.array, height: int, width: int) -> mx.array:
        """The table [1, size, size, hidden] at `height` times `width` places [1, height, width, hidden]."""
        read = cubic if self.config.interpolate_mode == "bicubic" else linear
        return read(table[0], height, width)[None].astype(table.dtype)


class EachAlone(VisionModel):  # type: ignore[misc]
    def __call__(self, pixel_values: mx.array, grid_thw: list[list[int]]) -> mx.array:
        """The features [1, tokens, hidden] of the patches [patches, values] of pictures of these frames and patches."""
        ends = np.cumsum([frames * height * width for frames, height, width in grid_thw])[:-1].tolist()
        parts = [
            super(EachAlone, self).__call__(own, [grid])
            for own, grid in zip(mx.split(pixel_values, ends), grid_thw, strict=True)
        ]
        return mx.concatenate(parts, axis=1)


MENDS = (
    exchanged(
        InPlaces,
        "positions are read a tenth of a patch beside their places, and beyond the edge of the table",
    ),
    exchanged(EachAlone, "the pictures of a prompt see each other"),
)

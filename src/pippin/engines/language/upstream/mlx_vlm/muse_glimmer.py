"""Muse Glimmer's positions of patches, which mlx-vlm 0.7.10 takes row by row: the publisher's code has the height and
the width of the grid exchanged, as Muse Spark's class has."""

from collections.abc import Sequence

import mlx.core as mx
from mlx_vlm.models.muse_glimmer.vision import PatchEmbedder

from pippin.engines.language.upstream.mends import exchanged


class Exchanged(PatchEmbedder):  # type: ignore[misc] # mlx has no types
    def _position_embeddings(self, grid: Sequence[Sequence[int]]) -> mx.array:
        turned = [(frames, width, height) for frames, height, width in grid]
        found: mx.array = super()._position_embeddings(turned)
        return found


MENDS = (exchanged(Exchanged, "positions of pictures that are not square are those of the grid turned"),)

"""Idefics 2's positions of patches, which mlx-vlm 0.7.10 counts two rows and two columns too low."""

import mlx.core as mx
import numpy as np
from mlx_vlm.models.idefics2.vision import VisionEmbeddings
from numpy.typing import NDArray

from pippin.engines.language.upstream.mends import Mend, to


class InTheirPlaces(VisionEmbeddings):  # type: ignore[misc] # mlx-vlm has no types
    def __call__(self, x: mx.array, mask: mx.array) -> mx.array:
        """Embeddings [pictures, patches, hidden] of pictures [pictures, height, width, 3]; `mask` [pictures, rows,
        columns] says which patches are theirs."""
        places = np.zeros(mask.shape, np.int64)
        for place, own in zip(places, np.array(mask, bool), strict=True):
            rows, columns = (self._buckets(int(each.sum())) for each in (own[:, 0], own[0]))
            place[own] = (rows[:, None] * self.num_patches + columns).ravel()
        patches = mx.flatten(self.patch_embedding(x), start_axis=1, end_axis=2)
        found: mx.array = patches + self.position_embedding(mx.array(places.reshape(len(places), -1)))
        return found

    def _buckets(self, count: int) -> NDArray[np.int64]:
        """The rows of the table for so many rows of a picture, in float32 as transformers computes them."""
        size = self.num_patches
        edges = (np.arange(1, size) / size).astype(np.float32)
        at = np.arange(count, dtype=np.float32) * np.float32(1 / max(count, 1))
        found: NDArray[np.int64] = np.searchsorted(edges, np.minimum(at, np.float32(1 - 1e-6)), side="right")
        return found


MENDS = (
    Mend(
        original=VisionEmbeddings,
        kind="fault",
        why="positions of patches are counted two rows and two columns too low",
        loaded=to(InTheirPlaces),
    ),
)

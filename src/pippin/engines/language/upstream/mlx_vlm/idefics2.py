"""Idefics 2's pictures, of which mlx-vlm 0.7.10 counts the positions of patches two rows and two columns too low, and
which there see the padding beside them where several of unlike sizes are in one prompt."""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx_vlm.models.base import InputEmbeddingsFeatures
from mlx_vlm.models.idefics2.idefics2 import Model
from mlx_vlm.models.idefics2.vision import VisionEmbeddings
from numpy.typing import NDArray

from pippin.engines.language.upstream.mends import exchanged


class EachAlone(Model):  # type: ignore[misc] # mlx-vlm has no types
    def get_input_embeddings(
        self, input_ids: mx.array | None = None, pixel_values: mx.array | None = None, **given: Any
    ) -> Any:
        """`pixel_values` [1, pictures, 3, height, width]; `pixel_attention_mask` [1, pictures, height, width] has 1 for
        the pixels of a picture and 0 for those that fill it up on its right and below."""
        if pixel_values is None:
            return super().get_input_embeddings(input_ids, None, **given)
        masks = given.pop("pixel_attention_mask", mx.ones_like(pixel_values[:, :, 0]))
        found = []
        for picture, mask in zip(pixel_values[0], np.array(masks[0], bool), strict=True):
            height, width = int(mask[:, 0].sum()), int(mask[0].sum())
            own = picture[:, :height, :width].transpose(1, 2, 0)[None]
            found.append(self.connector(self.vision_model(own)[0]))
        embedded = self.language_model.embed_tokens(input_ids)
        embedded = self._prepare_inputs_for_multimodal(mx.concatenate(found), embedded, input_ids)
        return InputEmbeddingsFeatures(inputs_embeds=embedded)


class InTheirPlaces(VisionEmbeddings):  # type: ignore[misc]
    def __call__(self, x: mx.array, mask: mx.array) -> mx.array:
        """Embeddings [pictures, patches, hidden] of pictures [pictures, height, width, 3]; `mask` [pictures, rows,
        columns] has the places of all patches."""
        rows, columns = map(self._buckets, mask.shape[1:])
        places = mx.array((rows[:, None] * self.num_patches + columns).ravel())
        found: mx.array = mx.flatten(self.patch_embedding(x), 1, 2) + self.position_embedding(places)
        return found

    def _buckets(self, count: int) -> NDArray[np.int64]:
        """The rows of the table for so many rows of a picture, in float32 as transformers computes them."""
        size = self.num_patches
        edges = (np.arange(1, size) / size).astype(np.float32)
        at = np.arange(count, dtype=np.float32) * np.float32(1 / max(count, 1))
        found: NDArray[np.int64] = np.searchsorted(edges, np.minimum(at, np.float32(1 - 1e-6)), side="right")
        return found


MENDS = (
    exchanged(EachAlone, "pictures see the padding beside them"),
    exchanged(InTheirPlaces, "positions of patches are counted two rows and two columns too low"),
)

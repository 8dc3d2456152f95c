"""LLaVA-NeXT's pictures, whose features lie in rows behind those of the whole picture, as transformers packs them.

mlx-vlm 0.7.10 puts all features of a tile in the place of one token, of the many that its processor makes for them; the
other tokens stay words. It leaves the padding in, and a whole tile of line ends at the end.
"""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx_vlm.models.base import InputEmbeddingsFeatures
from mlx_vlm.models.llava_next.llava_next import Model
from transformers.image_processing_utils import select_best_resolution

from pippin.engines.language.upstream.mends import Mend, to

GRIDS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
"""The sizes of tiled pictures in a configuration that names none."""


class InRows(Model):  # type: ignore[misc] # mlx-vlm has no types
    def get_input_embeddings(
        self,
        input_ids: mx.array | None = None,
        pixel_values: mx.array | None = None,
        image_sizes: mx.array | None = None,
        **given: Any,
    ) -> Any:
        """`pixel_values` [pictures, tiles, 3, height, width]; `image_sizes` [pictures, 2] of heights and widths."""
        if pixel_values is None or image_sizes is None:
            return super().get_input_embeddings(input_ids, pixel_values, **given)
        packed = []
        for tiles, size in zip(pixel_values, np.array(image_sizes).tolist(), strict=True):
            rows, columns = self._grid(size)
            packed.append(self._packed(self._features(tiles[: 1 + rows * columns]), rows, columns, size))
        embedded = self.language_model.model.embed_tokens(input_ids)
        places = np.flatnonzero(np.array(input_ids[0]) == self.config.image_token_index)
        embedded[:, mx.array(places)] = mx.concatenate(packed).astype(embedded.dtype)
        return InputEmbeddingsFeatures(inputs_embeds=embedded)

    def _grid(self, size: list[int]) -> tuple[int, int]:
        """How many tiles a picture of this size has in rows and columns."""
        grids = self.config.published.get("image_grid_pinpoints") or GRIDS
        height, width = select_best_resolution(size, grids)
        side = self.config.vision_config.image_size
        return height // side, width // side

    def _features(self, tiles: mx.array) -> mx.array:
        """The features [tiles, patches, hidden] of tiles [tiles, 3, height, width]."""
        *_, states = self.vision_tower(tiles.transpose(0, 2, 3, 1), output_hidden_states=True)
        first = 1 if self.vision_feature_select_strategy == "default" else 0
        found: mx.array = self.multi_modal_projector(states[self.vision_feature_layer][:, first:])
        return found

    def _packed(self, features: mx.array, rows: int, columns: int, size: list[int]) -> mx.array:
        """The features of the whole picture, then those of its tiles line by line without padding, each line with its
        end: [tokens, hidden]. The first of the tiles is the whole picture."""
        hidden = features.shape[-1]
        side = self.config.vision_config.image_size // self.config.vision_config.patch_size
        tiles = features[1:].reshape(rows, columns, side, side, hidden).swapaxes(1, 2)
        lines = tiles.reshape(rows * side, columns * side, hidden)[_inside(rows * side, columns * side, size)]
        end = mx.broadcast_to(self.image_newline, (lines.shape[0], 1, hidden))
        return mx.concatenate([features[0], mx.concatenate([lines, end], axis=1).reshape(-1, hidden)])


def _inside(height: int, width: int, size: list[int]) -> tuple[slice, slice]:
    """The part of a picture of this height and width that shows one of another size, the rest of it being padding."""
    own = size[1] / size[0]
    if own > width / height:
        padding = (height - int(round(size[0] * (width / size[1]), 7))) // 2
        return slice(padding, height - padding), slice(None)
    padding = (width - int(round(size[1] * (height / size[0]), 7))) // 2
    return slice(None), slice(padding, width - padding)


MENDS = (
    Mend(
        original=Model,
        kind="fault",
        why="all features of a tile stand in the place of one token of the many that are made for them",
        loaded=to(InRows),
    ),
)

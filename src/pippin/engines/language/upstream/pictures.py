"""What mlx-vlm's encoders of pictures have in common, and mends of several of them need."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_vlm.models.base import InputEmbeddingsFeatures
from transformers.image_processing_utils import select_best_resolution

from pippin.engines.language.upstream.mends import Mend, exchanged


def each_alone(kind: type) -> type:
    """A class of attention whose pictures, or frames, see themselves alone, as `cu_seqlens` tells them apart.

    mlx-vlm 0.7.10 cuts them in three: at the ends of the first and of the second.
    """

    class EachAlone(kind):  # type: ignore[misc]
        def __call__(
            self, x: mx.array, cu_seqlens: mx.array, rotary_pos_emb: mx.array | None = None
        ) -> mx.array:
            parts = []
            for start, stop in pairwise(np.array(cu_seqlens).tolist()):
                positions = None if rotary_pos_emb is None else rotary_pos_emb[start:stop]
                parts.append(super().__call__(x[start:stop], mx.array([0, stop - start]), positions))
            return mx.concatenate(parts)

    return EachAlone


GRIDS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
"""The sizes of tiled pictures in a configuration of LLaVA-NeXT that names none."""


class InRows(nn.Module):  # type: ignore[misc] # MLX has no types
    """What LLaVA-NeXT's classes of models lack: features of a picture's tiles lie in rows, as transformers packs them.

    mlx-vlm 0.7.10 puts all features of a tile in the place of one token, of the many that its processor makes for them;
    the other tokens stay words. It leaves the padding in, and a whole tile of line ends at the end.
    """

    def get_input_embeddings(
        self,
        input_ids: mx.array,
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
        layers = self.vision_feature_layer
        chosen = [states[each] for each in (layers if isinstance(layers, list) else [layers])]
        first = 1 if self.vision_feature_select_strategy == "default" else 0
        found: mx.array = self.multi_modal_projector(mx.concatenate(chosen, axis=-1)[:, first:])
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


def in_rows(kind: type) -> Mend:
    """The mend of LLaVA-NeXT's class of models, or of one that descends from it."""
    why = "all features of a tile stand in the place of one token of the many that are made for them"
    return exchanged(type("InRows", (InRows, kind), {}), why)


def _inside(height: int, width: int, size: list[int]) -> tuple[slice, slice]:
    """The part of a picture of this height and width that shows one of another size, the rest of it being padding."""
    own = size[1] / size[0]
    if own > width / height:
        padding = (height - int(round(size[0] * (width / size[1]), 7))) // 2
        return slice(padding, height - padding), slice(None)
    padding = (width - int(round(size[1] * (height / size[0]), 7))) // 2
    return slice(None), slice(padding, width - padding)


def cubic_positions(kind: type) -> Mend:
    """The mend of GLM-4V's class of embeddings: pictures have positions of their own size, read from a square table."""

    class InCubicPositions(kind):  # type: ignore[misc]
        def __call__(
            self, embeddings: mx.array, lengths: Any, shapes: mx.array, rows: mx.array, columns: mx.array
        ) -> mx.array:
            """Embeddings [patches, hidden] of pictures or frames of these `shapes` [n, 3] of frames and patches."""
            weight = self.position_embedding.weight
            size = int(weight.shape[0] ** 0.5)
            found, start = [], 0
            for frames, height, width in np.array(shapes).tolist():
                own = slice(start, start := start + frames * height * width)
                table = cubic(weight.reshape(size, size, -1), height, width)
                found.append(table[rows[own], columns[own]])
            positions = mx.concatenate(found).astype(weight.dtype)
            return embeddings + positions

    why = "positions between the points of the table are read linearly"
    return exchanged(InCubicPositions, why)


def cubic(table: mx.array, height: int, width: int) -> mx.array:
    """A square table [size, size, hidden] at `height` times `width` places [height, width, hidden], as torch's bicubic
    interpolation gives it: beyond the edge lies the edge."""
    return _between(table, _cubic_weights, height, width)


def linear(table: mx.array, height: int, width: int) -> mx.array:
    """The same by torch's bilinear interpolation."""
    return _between(table, _linear_weights, height, width)


def _between(table: mx.array, weigh: Callable[[int, int], mx.array], height: int, width: int) -> mx.array:
    rows, columns = (weigh(table.shape[0], length) for length in (height, width))
    return mx.einsum("hi,wj,ijd->hwd", rows, columns, table.astype(mx.float32))


def _linear_weights(size: int, length: int) -> mx.array:
    """The weights [length, size] of points at places between two of them."""
    at = ((np.arange(length) + 0.5) / length * size - 0.5).clip(0, size - 1)
    return mx.array(np.maximum(1 - np.abs(at[:, None] - np.arange(size)), 0).astype(np.float32))


def _cubic_weights(size: int, length: int) -> mx.array:
    """The weights [length, size] of points at places between them: the cubic convolution with a = -3/4 (Keys 1981)."""
    at = (np.arange(length) + 0.5) / length * size - 0.5
    found = np.zeros((length, size), np.float32)
    for tap in range(-1, 3):
        point = np.floor(at).astype(int) + tap
        far = np.abs(at - point)
        near = 1.25 * far**3 - 2.25 * far**2 + 1
        wide = -0.75 * (far**3 - 5 * far**2 + 8 * far - 4)
        np.add.at(found, (np.arange(length), point.clip(0, size - 1)), np.where(far <= 1, near, wide))
    return mx.array(found)

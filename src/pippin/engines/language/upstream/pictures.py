"""What mlx-vlm's encoders of pictures have in common, and mends of several of them need."""

from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np

from pippin.engines.language.upstream.mends import Mend, to


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
    return Mend(original=kind, kind="fault", why=why, loaded=to(InCubicPositions))


def cubic(table: mx.array, height: int, width: int) -> mx.array:
    """A square table [size, size, hidden] at `height` times `width` places [height, width, hidden], as torch's bicubic
    interpolation gives it: beyond the edge lies the edge."""
    size = table.shape[0]
    rows, columns = (_cubic_weights(size, length) for length in (height, width))
    return mx.einsum("hi,wj,ijd->hwd", rows, columns, table.astype(mx.float32))


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

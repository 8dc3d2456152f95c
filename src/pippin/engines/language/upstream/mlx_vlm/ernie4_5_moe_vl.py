"""ERNIE 4.5 VL's tower, in which mlx-vlm 0.7.10 lets all pictures of a prompt from the third on see each other.

It cuts them in three: at the ends of the first and of the second. Here each goes through the attention alone.
"""

from itertools import pairwise

import mlx.core as mx
import numpy as np
from mlx_vlm.models.ernie4_5_moe_vl.vision import VisionAttention

from pippin.engines.language.upstream.mends import Mend, to


class PictureAttention(VisionAttention):  # type: ignore[misc] # mlx-vlm has no types
    def __call__(self, x: mx.array, cu_seqlens: mx.array, rotary_pos_emb: mx.array | None = None) -> mx.array:
        parts = []
        for start, stop in pairwise(np.array(cu_seqlens).tolist()):
            positions = None if rotary_pos_emb is None else rotary_pos_emb[start:stop]
            parts.append(super().__call__(x[start:stop], mx.array([0, stop - start]), positions))
        return mx.concatenate(parts)


MENDS = (
    Mend(
        original=VisionAttention,
        kind="fault",
        why="of more than two pictures, all from the third on see each other",
        loaded=to(PictureAttention),
    ),
)

"""ERNIE 4.5 VL's tower, in which mlx-vlm 0.7.10 lets all pictures of a prompt from the third on see each other.

It cuts them in three: at the ends of the first and of the second. Here each goes through the attention alone.
"""

from itertools import pairwise

import mlx.core as mx
import numpy as np
from mlx_vlm.models.ernie4_5_moe_vl.ernie4_5_moe_vl import Model
from mlx_vlm.models.ernie4_5_moe_vl.vision import VisionAttention


def mend(model: Model) -> None:
    """Have the tower of a model keep pictures apart. Its weights stay where they are."""
    for block in model.vision_tower.blocks:
        block.attn.__class__ = PictureAttention


class PictureAttention(VisionAttention):  # type: ignore[misc] # mlx-vlm has no types
    def __call__(self, x: mx.array, cu_seqlens: mx.array, rotary_pos_emb: mx.array | None = None) -> mx.array:
        parts = []
        for start, stop in pairwise(np.array(cu_seqlens).tolist()):
            positions = None if rotary_pos_emb is None else rotary_pos_emb[start:stop]
            parts.append(super().__call__(x[start:stop], mx.array([0, stop - start]), positions))
        return mx.concatenate(parts)

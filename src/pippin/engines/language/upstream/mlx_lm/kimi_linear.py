"""Kimi Linear's small number of the norm of its compressed keys, which is one of its own: mlx-lm 0.32 takes that of its
layers."""

from mlx_lm.models.kimi_linear import KimiMLAAttention

from pippin.engines.language.upstream.mends import Mend
from pippin.engines.language.upstream.mlx_lm.glm4_moe_lite import own_epsilon

MENDS = (
    Mend(
        original=KimiMLAAttention,
        why="the norm of compressed keys has the small number of the layers",
        made=own_epsilon,
    ),
)

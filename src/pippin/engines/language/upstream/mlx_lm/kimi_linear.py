"""Kimi Linear as transformers saves it, with dense layers under the name of those with experts, which mlx-lm 0.32
does not read; and its small number of the norm of its compressed keys, which is one of its own."""

from mlx_lm.models.kimi_linear import KimiMLAAttention, Model

from pippin.engines.language.upstream.mends import Mend, renaming
from pippin.engines.language.upstream.mlx_lm import glm4_moe_lite

MENDS = (
    renaming(
        Model, {f".block_sparse_moe.{each}_proj.": f".mlp.{each}_proj." for each in ("gate", "up", "down")}
    ),
    Mend(original=KimiMLAAttention, why=glm4_moe_lite.WHY, made=glm4_moe_lite.own_epsilon),
)

"""GLM 4.7 Flash's small number of the norms of its compressed queries and keys, which is one of all its kind: mlx-lm
0.32 takes that of its layers (transformers' `Glm4MoeLiteRMSNorm`)."""

from typing import Any

from mlx_lm.models.glm4_moe_lite import Glm4MoeLiteAttention

from pippin.engines.language.upstream.mends import Mend

EPSILON = 1e-6
WHY = "the norms of compressed queries and keys have the small number of the layers"


def own_epsilon(attention: Glm4MoeLiteAttention, _: Any) -> None:
    for name in ("q_a_layernorm", "kv_a_layernorm"):
        if name in attention:
            attention[name].eps = EPSILON


MENDS = (Mend(original=Glm4MoeLiteAttention, why=WHY, made=own_epsilon),)

"""GLM-4's turned part of each head: mlx-lm 0.32 turns whole heads, the published models half of each
(`partial_rotary_factor`)."""

from collections.abc import Mapping
from typing import Any

import mlx.nn as nn
from mlx_lm.models.glm import GLMAttention

from pippin.engines.language.configuration import spelled_out
from pippin.engines.language.upstream.mends import Mend


def turn_part(attention: GLMAttention, config: Mapping[str, Any]) -> None:
    part = spelled_out(config).get("partial_rotary_factor", 1.0)
    own = attention.rope
    attention.rope = nn.RoPE(int(attention.head_dim * part), own.traditional, own.base, own.scale)


MENDS = (Mend(original=GLMAttention, why="`partial_rotary_factor` is not read", made=turn_part),)

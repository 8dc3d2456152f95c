"""MiniCPM 3's positions, which mlx-lm 0.32 scales by LongRoPE whatever its configuration says."""

from collections.abc import Mapping
from typing import Any

from mlx_lm.models.minicpm3 import Attention
from mlx_lm.models.rope_utils import apply_yarn_mscale, initialize_rope

from pippin.engines.language.configuration import spelled_out
from pippin.engines.language.upstream.mends import Mend


def turn(attention: Attention, config: Mapping[str, Any]) -> None:
    found = spelled_out(config)
    scaling = found.get("rope_scaling") or {"rope_type": "default"}
    base, longest = found.get("rope_theta", 10000.0), attention.args.max_position_embeddings
    attention.rope = initialize_rope(attention.qk_rope_head_dim, base, False, scaling, longest)
    attention.softmax_scale = apply_yarn_mscale(attention.softmax_scale, scaling)


MENDS = (Mend(original=Attention, why="the type of a scaling of positions is not read", made=turn),)

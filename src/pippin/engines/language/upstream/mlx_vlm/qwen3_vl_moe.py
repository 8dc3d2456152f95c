"""Qwen3-VL-MoE's encoder: mlx-vlm 0.7.10 has the two forms of GELU in each other's places. Its mergers do not
approximate it with a tanh, as in Qwen3-VL; its layers get what the configuration names (`reading`)."""

import mlx.nn as nn
from mlx_vlm.models.qwen3_vl_moe.vision import PatchMerger

from pippin.engines.language.upstream.mends import Mend


def _exact(module: nn.Module) -> None:
    module.act_fn = nn.GELU()


MENDS = (Mend(original=PatchMerger, why="GELU is approximated in its mergers", loaded=_exact),)

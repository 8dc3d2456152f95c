"""Qwen3-VL-MoE's encoder, in which mlx-vlm 0.7.10 has the two forms of GELU in each other's places: its layers
approximate it with a tanh, and its mergers do not, as in Qwen3-VL."""

import mlx.nn as nn
from mlx_vlm.models.qwen3_vl_moe.vision import MLP, PatchMerger

from pippin.engines.language.upstream.mends import Mend


def _exchanged(module: nn.Module) -> None:
    module.act_fn = nn.GELU("tanh" if isinstance(module, MLP) else "none")


MENDS = (
    Mend(original=MLP, why="GELU is exact in the encoder's layers", loaded=_exchanged),
    Mend(original=PatchMerger, why="GELU is approximated in its mergers", loaded=_exchanged),
)

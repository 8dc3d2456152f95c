"""MiniCPM-V's projector: mlx-vlm 0.7.10 computes GELU by tanh, which MLX calls precise; published models compute the
exact one (transformers' `MiniCPMV4_6DownsampleMLP`)."""

import mlx.nn as nn
from mlx_vlm.models.minicpmv4_6.minicpmv4_6 import Model

from pippin.engines.language.upstream.mends import Mend


def exact(model: Model) -> None:
    for block in model.merger.mlp:
        block.act = nn.GELU()


MENDS = (Mend(original=Model, why="the projector computes GELU by tanh", loaded=exact),)

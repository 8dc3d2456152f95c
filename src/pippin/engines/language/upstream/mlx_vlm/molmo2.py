"""The activation of Molmo 2's encoder: mlx-vlm 0.7.10 computes the sigmoid's form of GELU, which MLX calls fast; the
published model computes that by tanh (`gelu_pytorch_tanh`)."""

import mlx.nn as nn
from mlx_vlm.models.molmo2.vision import ViTMLP

from pippin.engines.language.upstream.mends import Mend


def compute_by_tanh(module: ViTMLP) -> None:
    module.act = nn.GELU(approx="tanh")


MENDS = (Mend(original=ViTMLP, why="the encoder computes the fast form of GELU", loaded=compute_by_tanh),)

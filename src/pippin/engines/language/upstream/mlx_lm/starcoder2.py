"""StarCoder 2's activation: mlx-lm 0.32 computes the exact GELU, the published model that by tanh."""

import mlx.nn as nn
from mlx_lm.models.starcoder2 import MLP

from pippin.engines.language.upstream.mends import by_tanh

MENDS = (by_tanh(MLP, lambda own, x: own.c_proj(nn.gelu_approx(own.c_fc(x)))),)

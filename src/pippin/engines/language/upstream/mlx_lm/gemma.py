"""Gemma's activation: mlx-lm 0.32 computes the exact GELU, the published model that by tanh, also where its
configuration has the older name (transformers' `GemmaConfig`)."""

import mlx.nn as nn
from mlx_lm.models.gemma import MLP

from pippin.engines.language.upstream.mends import by_tanh

MENDS = (by_tanh(MLP, lambda own, x: own.down_proj(nn.gelu_approx(own.gate_proj(x)) * own.up_proj(x))),)

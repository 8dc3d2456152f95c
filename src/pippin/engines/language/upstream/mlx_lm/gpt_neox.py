"""GPT-NeoX's activation: mlx-lm 0.32 computes GELU by tanh, which is right for GPT-NeoX 20B (`gelu_fast`), and wrong
for Pythia (`gelu`)."""

import mlx.nn as nn
from mlx_lm.models.gpt_neox import MLP

from pippin.engines.language.upstream.mends import exact_where

MENDS = (
    exact_where(MLP, "hidden_act", "gelu", lambda own, x: own.dense_4h_to_h(nn.gelu(own.dense_h_to_4h(x)))),
)

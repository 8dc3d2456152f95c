"""GPT-2 as transformers saves it, with `transformer.` before the names of its weights: mlx-lm 0.32 reads the first
published file alone, which lacks it. And its activation, which is the exact GELU in Cerebras-GPT, and which mlx-lm
computes by tanh."""

import mlx.nn as nn
from mlx_lm.models.gpt2 import MLP, Model

from pippin.engines.language.upstream.mends import exact_where, renaming

MENDS = (
    renaming(Model, {"transformer.": ""}),
    exact_where(MLP, "activation_function", "gelu_new", lambda own, x: own.c_proj(nn.gelu(own.c_fc(x)))),
)

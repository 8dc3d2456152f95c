"""GPT-NeoX's activation: mlx-lm 0.32 computes GELU by tanh, which is right for GPT-NeoX 20B (`gelu_fast`), and wrong
for Pythia (`gelu`)."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.gpt_neox import MLP

from pippin.engines.language.upstream.classes import become
from pippin.engines.language.upstream.mends import Mend


class Exact(MLP):  # type: ignore[misc] # mlx-lm has no types
    def __call__(self, x: mx.array) -> mx.array:
        found: mx.array = self.dense_4h_to_h(nn.gelu(self.dense_h_to_4h(x)))
        return found


def as_named(module: MLP, config: Mapping[str, Any]) -> None:
    if config.get("hidden_act", "gelu") == "gelu":
        become(module, Exact)


MENDS = (Mend(original=MLP, why="`hidden_act` is not read", made=as_named),)

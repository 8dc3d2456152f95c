"""Gemma's activation: mlx-lm 0.32 computes the exact GELU, the published model that by tanh, also where its
configuration has the older name (transformers' `GemmaConfig`)."""

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.gemma import MLP

from pippin.engines.language.upstream.mends import Mend, to


class ByTanh(MLP):  # type: ignore[misc] # mlx-lm has no types
    def __call__(self, x: mx.array) -> mx.array:
        found: mx.array = self.down_proj(nn.gelu_approx(self.gate_proj(x)) * self.up_proj(x))
        return found


MENDS = (
    Mend(
        original=MLP,
        kind="fault",
        why="the activation is the exact GELU, and not that by tanh",
        loaded=to(ByTanh),
    ),
)

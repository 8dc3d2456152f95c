"""GPT BigCode's activation: mlx-lm 0.32 computes the exact GELU, the published model that by tanh."""

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.gpt_bigcode import MLP

from pippin.engines.language.upstream.mends import Mend, to


class ByTanh(MLP):  # type: ignore[misc] # mlx-lm has no types
    def __call__(self, x: mx.array) -> mx.array:
        found: mx.array = self.c_proj(nn.gelu_approx(self.c_fc(x)))
        return found


MENDS = (
    Mend(
        original=MLP,
        kind="fault",
        why="the activation is the exact GELU, and not that by tanh",
        loaded=to(ByTanh),
    ),
)

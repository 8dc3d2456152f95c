"""GPT BigCode's learned positions for sequences of different length, which mlx-lm 0.32 has for one length alone, and
its activation: mlx-lm computes the exact GELU, the published model that by tanh."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.gpt_bigcode import MLP, GPTBigCodeModel

from pippin.engines.language.upstream.mends import Mend, to


class OfAnyLengths(GPTBigCodeModel):  # type: ignore[misc] # mlx-lm has no types
    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        if cache is None:
            alone: mx.array = super().__call__(inputs)
            return alone
        starts = mx.array(cache[0].offset)  # one for all sequences, or one of each
        hidden = self.wte(inputs) + self.wpe(starts[..., None] + mx.arange(inputs.shape[1]))
        mask = create_attention_mask(hidden, cache[0])
        for layer, own in zip(self.h, cache, strict=True):
            hidden = layer(hidden, mask, cache=own)
        found: mx.array = self.ln_f(hidden)
        return found


class ByTanh(MLP):  # type: ignore[misc]
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
    Mend(
        original=GPTBigCodeModel,
        kind="batching",
        why="learned positions begin at one number for all sequences",
        loaded=to(OfAnyLengths),
    ),
)

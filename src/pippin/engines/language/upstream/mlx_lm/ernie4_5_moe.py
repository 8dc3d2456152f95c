"""ERNIE 4.5's choice of experts: mlx-lm 0.32 leaves out the bias that the checkpoint adds to a router's scores.

The bias decides which experts are chosen; their weights are the scores without it (transformers'
`Ernie4_5_MoeTopKRouter`, vLLM's `ernie45_moe`). A conversion by mlx-lm lacks it, and is computed as mlx-lm does.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.ernie4_5_moe import Ernie4_5_MoeMLP, Model

from pippin.engines.language.upstream.classes import become
from pippin.engines.language.upstream.mends import Mend

BIAS = "moe_statics.e_score_correction_bias"


def take_biases(model: Model, config: Mapping[str, Any]) -> None:
    """Let a model that is not loaded yet take the biases that are stored."""
    sanitize = model.sanitize

    def with_biases(weights: dict[str, mx.array]) -> dict[str, mx.array]:
        biases: dict[str, mx.array] = {}
        for place, layer in enumerate(model.layers):
            name = f"model.layers.{place}.mlp.{BIAS}"
            if name in weights and isinstance(layer.mlp, Ernie4_5_MoeMLP):
                biases[name] = weights[name]
                become(layer.mlp, BiasedExperts)
                layer.mlp.moe_statics = Statics(biases[name].shape)
        found: dict[str, mx.array] = sanitize(weights)
        return {**found, **biases}

    model.sanitize = with_biases
    model.cast_predicate = lambda name: not name.endswith(BIAS)


class Statics(nn.Module):  # type: ignore[misc] # mlx has no types
    """The bias of each expert, under the checkpoint's name."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.e_score_correction_bias = mx.zeros(shape)


class BiasedExperts(Ernie4_5_MoeMLP):  # type: ignore[misc] # mlx-lm has no types
    def __call__(self, x: mx.array) -> mx.array:
        scores = self.gate_act(self.gate(x).astype(mx.float32))
        biased = scores + self.moe_statics.e_score_correction_bias.flatten()
        chosen = mx.argpartition(-biased, kth=self.k - 1, axis=-1)[..., : self.k]
        weights = mx.take_along_axis(scores, chosen, axis=-1)
        weights = weights / mx.maximum(weights.sum(axis=-1, keepdims=True), 1e-12)
        answers = self.switch_mlp(x, chosen)
        found: mx.array = (answers * weights[..., None]).sum(axis=-2).astype(answers.dtype)
        return found if self.shared_experts is None else found + self.shared_experts(x)


MENDS = (Mend(original=Model, why="the bias by which experts are chosen is left out", made=take_biases),)

"""Ling 3.0's limits of activations, one of each layer for its experts and one for its shared experts, with which it was
trained: mlx-lm 0.32 does not read them. And its last matrix of linear attention under the name that transformers saves.

As in vLLM's `bailing_moe_v3`, dense layers have none, and 0 or a place behind the end of a list is no limit.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx_lm.models.bailing_moe_v3 import BailingMLA, BailingMLP, BailingSparseMoE, Model
from mlx_lm.models.step3p5 import ClampedSwiGLU

from pippin.engines.language.upstream.classes import become
from pippin.engines.language.upstream.mends import Arrays, Mend, storing
from pippin.engines.language.upstream.mlx_lm import glm4_moe_lite

LIMITS = ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list")
"""Fields of the configuration."""


def limit(model: Model, config: Mapping[str, Any]) -> None:
    """Give the layers of a model the limits that the configuration names, and all their weights."""
    storing(with_outputs)(model, config)
    routed, shared = (config.get(name) or () for name in LIMITS)
    for place, layer in enumerate(model.layers):
        if not isinstance(layer.mlp, BailingSparseMoE):
            continue
        if place < len(routed) and routed[place]:
            layer.mlp.switch_mlp.activation = ClampedSwiGLU(float(routed[place]))
        if place < len(shared) and shared[place]:
            become(layer.mlp.shared_experts, LimitedMLP)
            layer.mlp.shared_experts.activation = ClampedSwiGLU(float(shared[place]))


class LimitedMLP(BailingMLP):  # type: ignore[misc] # mlx-lm has no types
    def __call__(self, x: mx.array) -> mx.array:
        found: mx.array = self.down_proj(self.activation(self.up_proj(x), self.gate_proj(x)))
        return found


def with_outputs(model: Model, arrays: Arrays) -> Arrays:
    found = dict(arrays)
    for place, layer in enumerate(model.layers):
        path = f"model.layers.{place}.attention"
        if layer.is_linear and f"{path}.dense.weight" in found:
            found[f"{path}.o_proj.weight"] = found.pop(f"{path}.dense.weight")
    return found


MENDS = (
    Mend(
        original=Model,
        why="limits of activations are not read, nor linear attention's last matrix by the name of the other's",
        made=limit,
    ),
    Mend(original=BailingMLA, why=glm4_moe_lite.WHY, made=glm4_moe_lite.own_epsilon),
)

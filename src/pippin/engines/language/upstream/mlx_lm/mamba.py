"""Mamba's small number of its norms (`layer_norm_epsilon`), which mlx-lm 0.32 does not read."""

from collections.abc import Mapping
from typing import Any

import mlx.nn as nn
from mlx_lm.models.mamba import Model

from pippin.engines.language.upstream.mends import Mend


def take_epsilon(model: Model, config: Mapping[str, Any]) -> None:
    for module in model.modules():
        if type(module) is nn.RMSNorm:
            module.eps = config.get("layer_norm_epsilon", 1e-5)


MENDS = (
    Mend(
        original=Model,
        kind="fault",
        why="`layer_norm_epsilon` is not read",
        made=take_epsilon,
    ),
)

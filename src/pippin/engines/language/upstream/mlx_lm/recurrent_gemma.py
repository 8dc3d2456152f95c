"""Recurrent Gemma's small number of its norms (`rms_norm_eps`), which mlx-lm 0.32 does not read."""

from collections.abc import Mapping
from typing import Any

from mlx_lm.models.recurrent_gemma import Model, RMSNorm

from pippin.engines.language.upstream.mends import Mend


def take_epsilon(model: Model, config: Mapping[str, Any]) -> None:
    for module in model.modules():
        if type(module) is RMSNorm:
            module.eps = config.get("rms_norm_eps", 1e-6)


MENDS = (
    Mend(
        original=Model,
        kind="fault",
        why="`rms_norm_eps` is not read",
        made=take_epsilon,
    ),
)

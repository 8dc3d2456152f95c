"""GPT-OSS as transformers saves it, with experts that are not packed: mlx-lm 0.32 reads packed ones alone."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx_lm.models.gpt_oss import Model

from pippin.engines.language.upstream.mends import Mend

EXPERTS = ("experts.gate_up_proj", "experts.down_proj")


def take_unpacked(model: Model, config: Mapping[str, Any]) -> None:
    sanitize = model.sanitize

    def unpacked(weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """Unpacked experts lie as [experts, input, output]."""
        found: dict[str, mx.array] = sanitize(
            {
                name: array.swapaxes(-1, -2) if name.endswith(EXPERTS) else array
                for name, array in weights.items()
            }
        )
        return {f"{name}.weight" if name.endswith(STORED) else name: array for name, array in found.items()}

    model.sanitize = unpacked


STORED = ("experts.gate_proj", "experts.up_proj", "experts.down_proj")
MENDS = (Mend(original=Model, why="experts that are not packed are not read", made=take_unpacked),)

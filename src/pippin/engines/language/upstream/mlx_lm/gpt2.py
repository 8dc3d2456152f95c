"""GPT-2 as transformers saves it, with `transformer.` before the names of its weights: mlx-lm 0.32 reads the first
published file alone, which lacks it."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx_lm.models.gpt2 import Model

from pippin.engines.language.upstream.mends import Mend


def take_prefixed(model: Model, config: Mapping[str, Any]) -> None:
    sanitize = model.sanitize

    def without_prefix(weights: dict[str, mx.array]) -> dict[str, mx.array]:
        found: dict[str, mx.array] = sanitize(
            {name.removeprefix("transformer."): array for name, array in weights.items()}
        )
        return found

    model.sanitize = without_prefix


MENDS = (
    Mend(
        original=Model,
        kind="fault",
        why="names that begin with `transformer.` are not read",
        made=take_prefixed,
    ),
)

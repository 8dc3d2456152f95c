"""Ling's prediction heads behind the last layer: mlx-lm 0.32 does not read a checkpoint that has them, while its other
classes leave out the weights of such layers."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.bailing_moe import Model

from pippin.engines.language.upstream.mends import Mend


def leave_out_heads(model: nn.Module, config: Mapping[str, Any]) -> None:
    """Have a model leave out the weights of layers behind its last one when it is loaded."""
    sanitize, last = model.sanitize, len(model.layers)

    def leave_out(weights: dict[str, mx.array]) -> dict[str, mx.array]:
        own: dict[str, mx.array] = {}
        for name, array in weights.items():
            number = name.removeprefix("model.layers.").partition(".")[0]
            if not number.isdigit() or int(number) < last:
                own[name] = array
        found: dict[str, mx.array] = sanitize(own)
        return found

    model.sanitize = leave_out


MENDS = (
    Mend(
        original=Model,
        kind="fault",
        why="a checkpoint with layers behind the last one is not read",
        made=leave_out_heads,
    ),
)

"""Ling's prediction heads behind the last layer: mlx-lm 0.32 does not read a checkpoint that has them, while its other
classes leave out the weights of such layers."""

import mlx.nn as nn
from mlx_lm.models.bailing_moe import Model

from pippin.engines.language.upstream.mends import Arrays, Mend, storing


def without_heads(model: nn.Module, arrays: Arrays) -> Arrays:
    """The arrays of a checkpoint, but for those of layers behind the model's last one."""
    found: Arrays = {}
    for name, array in arrays.items():
        number = name.removeprefix("model.layers.").partition(".")[0]
        if not number.isdigit() or int(number) < len(model.layers):
            found[name] = array
    return found


MENDS = (
    Mend(
        original=Model,
        why="a checkpoint with layers behind the last one is not read",
        made=storing(without_heads),
    ),
)

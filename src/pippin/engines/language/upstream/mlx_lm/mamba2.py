"""Mamba 2's norms: mlx-lm 0.32 takes one over all groups, and does not read `layer_norm_epsilon` for its layers."""

import mlx.nn as nn
from mlx_lm.models.mamba2 import Mamba2Block, Model

from pippin.engines.language.upstream.grouped import WHY, by_groups
from pippin.engines.language.upstream.mends import Mend, with_epsilon

MENDS = (
    Mend(original=Mamba2Block, why=WHY, made=by_groups),
    Mend(
        original=Model,
        why="`layer_norm_epsilon` is not read",
        made=with_epsilon(nn.RMSNorm, "layer_norm_epsilon", 1e-5),
    ),
)

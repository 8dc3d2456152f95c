"""Mamba's small number of its norms (`layer_norm_epsilon`), which mlx-lm 0.32 does not read."""

import mlx.nn as nn
from mlx_lm.models.mamba import Model

from pippin.engines.language.upstream.mends import Mend, with_epsilon

MENDS = (
    Mend(
        original=Model,
        why="`layer_norm_epsilon` is not read",
        made=with_epsilon(nn.RMSNorm, "layer_norm_epsilon", 1e-5),
    ),
)

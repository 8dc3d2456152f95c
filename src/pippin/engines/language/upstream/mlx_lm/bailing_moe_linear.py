"""Ring's and Ling's prediction heads behind the last layer, with which mlx-lm 0.32 does not read a checkpoint."""

from mlx_lm.models.bailing_moe_linear import Model

from pippin.engines.language.upstream.mends import Mend, storing
from pippin.engines.language.upstream.mlx_lm.bailing_moe import without_heads

MENDS = (
    Mend(
        original=Model,
        why="a checkpoint with layers behind the last one is not read",
        made=storing(without_heads),
    ),
)

"""Mamba 2's norms: mlx-lm 0.32 takes one over all groups, and does not read `layer_norm_epsilon` for its layers."""

from mlx_lm.models.mamba2 import Mamba2Block, Model
from msgspec.structs import replace

from pippin.engines.language.upstream.grouped import WHY, by_groups
from pippin.engines.language.upstream.mends import Mend
from pippin.engines.language.upstream.mlx_lm import mamba

MENDS = (
    Mend(original=Mamba2Block, why=WHY, made=by_groups),
    *(replace(each, original=Model) for each in mamba.MENDS),
)

"""Ring's and Ling's prediction heads behind the last layer, with which mlx-lm 0.32 does not read a checkpoint."""

from mlx_lm.models.bailing_moe_linear import Model
from msgspec.structs import replace

from pippin.engines.language.upstream.mlx_lm import bailing_moe

MENDS = tuple(replace(each, original=Model) for each in bailing_moe.MENDS)

"""Factors of YaRN and LongRoPE that mlx-lm 0.32 does not read, and YaRN's frequencies between whole numbers of
dimensions (`truncate: false`, as GPT-OSS has them). Formulas: transformers' `_compute_yarn_parameters` and
`_compute_longrope_parameters`."""

from mlx_lm.models.rope_utils import SuScaledRoPE, YarnRoPE

from pippin.engines.language.upstream.mends import Mend
from pippin.engines.language.upstream.rotary import complete_long, complete_yarn

YARN = "`truncate` and `attention_factor` are not read, and one of `mscale` and `mscale_all_dim` alone is"

MENDS = (
    Mend(original=SuScaledRoPE, why="`factor` and `attention_factor` are not read", made=complete_long),
    Mend(original=YarnRoPE, why=YARN, made=complete_yarn),
)

"""Recurrent Gemma's small number of its norms (`rms_norm_eps`), which mlx-lm 0.32 does not read."""

from mlx_lm.models.recurrent_gemma import Model, RMSNorm

from pippin.engines.language.upstream.mends import Mend, with_epsilon

MENDS = (
    Mend(original=Model, why="`rms_norm_eps` is not read", made=with_epsilon(RMSNorm, "rms_norm_eps", 1e-6)),
)

"""Granite's mixers with groups: mlx-lm 0.32 takes the norm over all of them."""

from mlx_lm.models.granitemoehybrid import GraniteMoeHybridMamba2Mixer

from pippin.engines.language.upstream.grouped import WHY, by_groups
from pippin.engines.language.upstream.mends import Mend

MENDS = (Mend(original=GraniteMoeHybridMamba2Mixer, why=WHY, made=by_groups),)

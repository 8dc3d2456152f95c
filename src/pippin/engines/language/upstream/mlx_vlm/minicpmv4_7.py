"""The projector of MiniCPM-V 4.7, which is that of 4.6."""

from mlx_vlm.models.minicpmv4_7.minicpmv4_7 import Model

from pippin.engines.language.upstream.mends import Mend
from pippin.engines.language.upstream.mlx_vlm.minicpmv4_6 import WHY, exact

MENDS = (Mend(original=Model, why=WHY, loaded=exact),)

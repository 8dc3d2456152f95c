"""What mlx-vlm 0.7.10 does not read of YaRN, as in mlx-lm."""

from mlx_vlm.models.rope_utils import YarnRoPE

from pippin.engines.language.upstream.mends import Mend
from pippin.engines.language.upstream.mlx_lm.rope_utils import YARN
from pippin.engines.language.upstream.rotary import complete_yarn

MENDS = (Mend(original=YarnRoPE, why=YARN, made=complete_yarn),)

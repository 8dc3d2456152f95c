"""ERNIE 4.5 VL's tower, in which mlx-vlm 0.7.10 lets all pictures of a prompt from the third on see each other."""

from mlx_vlm.models.ernie4_5_moe_vl.vision import VisionAttention

from pippin.engines.language.upstream.mends import exchanged
from pippin.engines.language.upstream.pictures import each_alone

MENDS = (
    exchanged(each_alone(VisionAttention), "of more than two pictures, all from the third on see each other"),
)

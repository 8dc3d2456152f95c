"""GLM-4.5V's pictures, whose positions mlx-vlm 0.7.10 reads as those of GLM-4V."""

from mlx_vlm.models.glm4v_moe.vision import Glm4vVisionEmbeddings

from pippin.engines.language.upstream.mends import Mend, to
from pippin.engines.language.upstream.pictures import in_cubic_positions

MENDS = (
    Mend(
        original=Glm4vVisionEmbeddings,
        why="positions between the points of the table are read linearly",
        loaded=to(in_cubic_positions(Glm4vVisionEmbeddings)),
    ),
)

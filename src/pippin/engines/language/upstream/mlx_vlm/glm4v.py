"""GLM-4V's pictures: mlx-vlm 0.7.10 reads the table of their positions between its points linearly, and as 0 beyond
its edge, where transformers reads it by bicubic interpolation. All frames of a video from the third on see each
other."""

from mlx_vlm.models.glm4v.vision import Glm4vVisionAttention, Glm4vVisionEmbeddings

from pippin.engines.language.upstream.mends import exchanged
from pippin.engines.language.upstream.pictures import cubic_positions, each_alone

MENDS = (
    cubic_positions(Glm4vVisionEmbeddings),
    exchanged(each_alone(Glm4vVisionAttention), "all frames from the third on see each other"),
)

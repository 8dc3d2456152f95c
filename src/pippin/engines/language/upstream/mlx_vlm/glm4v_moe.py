"""GLM-4.5V's pictures, whose positions mlx-vlm 0.7.10 reads as those of GLM-4V."""

from mlx_vlm.models.glm4v_moe.vision import Glm4vVisionEmbeddings

from pippin.engines.language.upstream.pictures import cubic_positions

MENDS = (cubic_positions(Glm4vVisionEmbeddings),)

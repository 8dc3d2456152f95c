"""PaliGemma's picture, whose features mlx-vlm 0.7.10 takes by the places of its tokens in the prompt, as if the prompt
began with them: behind other text the first features are lost, and zeros stand for the last."""

import mlx.core as mx
import numpy as np
from mlx_vlm.models.paligemma.paligemma import Model

from pippin.engines.language.upstream.mends import exchanged


class InItsPlace(Model):  # type: ignore[misc] # mlx-vlm has no types
    def _prepare_inputs_for_multimodal(
        self, image_features: mx.array, inputs_embeds: mx.array, input_ids: mx.array, attention_mask: mx.array
    ) -> tuple[mx.array, mx.array]:
        """The embeddings [1, tokens, hidden] with the features [1, patches, hidden] of the picture, and the mask
        [1, 1, tokens, tokens], by which all tokens of a prompt see each other."""
        places = mx.array(np.flatnonzero(np.array(input_ids[0]) == self.config.image_token_index))
        inputs_embeds[:, places] = image_features / self.config.hidden_size**0.5
        return inputs_embeds, (attention_mask[:, None] * attention_mask[:, :, None])[:, None]


MENDS = (
    exchanged(InItsPlace, "the features of a picture are taken by the places of its tokens in the prompt"),
)

"""Gemma 3's pictures, whose tokens see each other in transformers, and whose features stand there as they are.

mlx-vlm 0.7.10 lets a token see earlier ones alone. It divides the features by the root of a field that published
checkpoints do not have (2,048 then) before it multiplies them, as all embeddings, by that of the hidden size. As in
mlx-lm, fewer layers than its pattern has fail.
"""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx_vlm.models.gemma3.gemma3 import Model
from mlx_vlm.models.gemma3.language import Gemma3Model, LanguageModel

from pippin.engines.language.upstream.caches import mutual
from pippin.engines.language.upstream.classes import become
from pippin.engines.language.upstream.mends import Mend
from pippin.engines.language.upstream.mlx_lm.gemma3_text import lengthened


class SeeingWhole(LanguageModel):  # type: ignore[misc] # mlx-vlm has no types
    sees_pictures_whole = True
    picture: int  # the token that features replace

    def __call__(
        self,
        inputs: mx.array,
        inputs_embeds: mx.array | None = None,
        mask: mx.array | None = None,
        cache: list[Any] | None = None,
        **given: Any,
    ) -> Any:
        if inputs_embeds is not None and cache is not None:
            shown = np.array(inputs[0] == self.picture).astype(int)
            edges = np.flatnonzero(np.diff(shown, prepend=0, append=0)).tolist()
            cache = mutual(cache, list(zip(edges[::2], edges[1::2], strict=True)))
        if cache is not None:
            cache = lengthened(cache, self.model.sliding_window_pattern)
        return super().__call__(inputs, inputs_embeds, mask, cache, **given)


class ExactlyScaled(Gemma3Model):  # type: ignore[misc]
    """Embeddings in float32 are multiplied by the root itself, as in transformers, which mlx-vlm rounds."""

    def __call__(
        self,
        inputs: mx.array,
        inputs_embeds: mx.array | None = None,
        mask: mx.array | None = None,
        cache: list[Any] | None = None,
    ) -> mx.array:
        scale = self.config.hidden_size**0.5
        rounded = mx.array(scale, mx.bfloat16).item()
        embedded = self.embed_tokens(inputs) if inputs_embeds is None else inputs_embeds
        found: mx.array = super().__call__(inputs, embedded * (scale / rounded), mask, cache)
        return found


def _mended(model: Model) -> None:
    language, text = model.language_model, model.language_model.model
    language.picture = model.config.image_token_index
    become(language, SeeingWhole)
    scale = text.config.hidden_size**0.5
    if text.embed_tokens.weight.dtype == mx.float32:
        become(text, ExactlyScaled)
    else:
        scale = mx.array(scale, mx.bfloat16).item()
    # Features are divided by the root of this, and multiplied by the language model's scale.
    model.config.hidden_size = scale**2


MENDS = (
    Mend(
        original=Model,
        why="the tokens of a picture see earlier ones alone, and features are scaled by a field that checkpoints lack",
        loaded=_mended,
    ),
)

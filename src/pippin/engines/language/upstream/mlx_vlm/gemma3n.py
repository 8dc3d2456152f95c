"""Gemma 3n as transformers and mlx-lm compute it, which mlx-vlm 0.7.10 does not in two places.

It embeds the words of a prompt without the factor that it gives to those of the answer, and the tokens around media as
words where a part of the prompt has no medium. And the layers that share the keys and values of an earlier one rotate
their queries by the positions after the chunk, not by those of its tokens.
"""

from typing import Any

import mlx.core as mx
from mlx_vlm.models.base import InputEmbeddingsFeatures, scaled_dot_product_attention
from mlx_vlm.models.gemma3n.gemma3n import Model
from mlx_vlm.models.gemma3n.language import Gemma3nAttention

from pippin.engines.language.upstream.classes import become
from pippin.engines.language.upstream.mends import Mend, exchanged


class ScaledGemma3n(Model):  # type: ignore[misc] # mlx-vlm has no types
    def get_input_embeddings(
        self, input_ids: mx.array, pixel_values: mx.array | None = None, **given: Any
    ) -> InputEmbeddingsFeatures:
        found = super().get_input_embeddings(input_ids, pixel_values, **given)
        embeddings = found.inputs_embeds
        if pixel_values is None and given.get("input_features") is None:
            embeddings = self._with_markers(input_ids, embeddings)
        is_word = (input_ids < self.embed_vision.vocab_offset)[..., None]
        text = self.language_model.model
        # Made anew, and not from what was found: a later mlx-vlm may have scaled that.
        words = text.embed_tokens(input_ids) * text.hidden_size**0.5
        return InputEmbeddingsFeatures(
            inputs_embeds=mx.where(is_word, words, embeddings), per_layer_inputs=found.per_layer_inputs
        )

    def _with_markers(self, ids: mx.array, embeddings: mx.array) -> mx.array:
        """The embeddings with those of the tokens around media, which the embedders of media have."""
        first, second = self.embed_vision.vocab_offset, self.embed_audio.vocab_offset
        for embedder, inside in (
            (self.embed_vision, (ids >= first) & (ids < second)),
            (self.embed_audio, ids >= second),
        ):
            markers = embedder(input_ids=mx.where(inside, ids, embedder.vocab_offset))
            embeddings = mx.where(inside[..., None], markers, embeddings)
        return embeddings


class SharingAttention(Gemma3nAttention):  # type: ignore[misc]
    """Attention to the keys and values of an earlier layer, which has added those of this chunk before."""

    def __call__(self, x: mx.array, mask: mx.array | str | None = None, cache: Any | None = None) -> mx.array:
        if cache is None:
            raise ValueError("a layer that shares keys and values needs a cache")
        batch, length, _ = x.shape
        queries = self.q_norm(self.q_proj(x).reshape(batch, length, -1, self.head_dim)).transpose(0, 2, 1, 3)
        queries = self.rope(queries, offset=cache.offset - length)
        # The caches of mlx-lm, and those of batches, have what the earlier layer was given; mlx-vlm's do not say it.
        keys, values = cache.keys_and_values() if hasattr(cache, "keys_and_values") else cache.state[:2]
        if isinstance(mask, mx.array):
            mask = mask[..., : keys.shape[2]]
        output = scaled_dot_product_attention(queries, keys, values, cache=cache, scale=self.scale, mask=mask)
        projected: mx.array = self.o_proj(output.transpose(0, 2, 1, 3).reshape(batch, length, -1))
        return projected


def _sharing(attention: Gemma3nAttention) -> None:
    if attention.is_kv_shared_layer:
        become(attention, SharingAttention)


MENDS = (
    exchanged(
        ScaledGemma3n,
        "words of a prompt are embedded without the factor of the answer's, and markers of media as words",
    ),
    Mend(
        original=Gemma3nAttention,
        why="layers that share keys and values rotate their queries by the positions after the chunk",
        loaded=_sharing,
    ),
)

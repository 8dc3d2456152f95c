"""Llama 4 for sequences of different length: mlx-vlm 0.7.10 makes its masks of chunks, and scales its queries by their
positions, for one length alone, as mlx-lm does."""

import mlx.core as mx
from mlx_vlm.models.llama4.language import Attention, LlamaModel

from pippin.engines.language.kv_cache.slots import PromptCache
from pippin.engines.language.upstream.llama4 import of_any_positions, through_layers
from pippin.engines.language.upstream.mends import Mend, to


class OfAnyLengths(LlamaModel):  # type: ignore[misc] # mlx-vlm has no types
    def __call__(
        self,
        input_ids: mx.array | None = None,
        input_embeds: mx.array | None = None,
        mask: mx.array | None = None,
        cache: PromptCache | None = None,
    ) -> mx.array:
        # mlx-vlm's own caches of chunks do not say what a token sees.
        if cache is None or mask is not None or not all(hasattr(own, "make_mask") for own in cache):
            alone: mx.array = super().__call__(input_ids, input_embeds, mask, cache)
            return alone
        return through_layers(
            self, self.embed_tokens(input_ids) if input_embeds is None else input_embeds, cache
        )


MENDS = (
    Mend(
        original=LlamaModel,
        kind="batching",
        why="masks of chunks are made for one length",
        loaded=to(OfAnyLengths),
    ),
    Mend(
        original=Attention,
        kind="batching",
        why="queries are scaled by positions that are one number for all sequences",
        loaded=to(of_any_positions(Attention)),
    ),
)

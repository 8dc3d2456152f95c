"""Jamba's weights of experts: mlx-lm 0.32 takes the softmax of the chosen experts' scores, the published model those of
all experts, whose sum is less than one (transformers' `JambaTopKRouter`, vLLM's `jamba`)."""

import mlx.core as mx
from mlx_lm.models.jamba import JambaSparseMoeBlock

from pippin.engines.language.upstream.mends import exchanged


class OfAllExperts(JambaSparseMoeBlock):  # type: ignore[misc] # mlx-lm has no types
    def __call__(self, x: mx.array) -> mx.array:
        weights = mx.softmax(self.router(x), axis=-1, precise=True)
        count = self.num_experts_per_tok
        chosen = mx.argpartition(-weights, kth=count - 1, axis=-1)[..., :count]
        answers = self.switch_mlp(x, chosen)
        found: mx.array = (answers * mx.take_along_axis(weights, chosen, axis=-1)[..., None]).sum(axis=-2)
        return found


MENDS = (exchanged(OfAllExperts, "the weights of chosen experts are made to sum to one"),)

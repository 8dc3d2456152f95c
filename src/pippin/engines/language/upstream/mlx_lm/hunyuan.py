"""Hunyuan A13B's experts, whose weights sum to one, which mlx-lm 0.32 leaves out."""

import mlx.core as mx
from mlx_lm.models.hunyuan import MoeBlock

from pippin.engines.language.upstream.mends import exchanged


class Summing(MoeBlock):  # type: ignore[misc] # mlx has no types
    def __call__(self, x: mx.array) -> mx.array:
        if self.top_k == 1:
            found: mx.array = super().__call__(x)
            return found
        logits = self.gate(x)
        chosen = mx.argpartition(-logits, kth=self.top_k - 1, axis=-1)[..., : self.top_k]
        weights = mx.softmax(mx.take_along_axis(logits, chosen, axis=-1), axis=-1, precise=True)
        y = (self.switch_mlp(x, chosen) * weights[..., None].astype(mx.float32)).sum(axis=-2).astype(x.dtype)
        return y + self.shared_mlp(x) if self.use_shared_mlp else y


MENDS = (exchanged(Summing, "the weights of the chosen experts do not sum to one"),)

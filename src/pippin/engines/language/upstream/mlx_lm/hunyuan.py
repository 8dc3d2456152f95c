"""Hunyuan A13B's experts, whose weights sum to one where there are several, which mlx-lm 0.32 leaves out (transformers'
`HunYuanMoEV1Moe`)."""

import mlx.core as mx
from mlx_lm.models.hunyuan import MoeBlock

from pippin.engines.language.upstream.classes import become
from pippin.engines.language.upstream.mends import Mend


class Summing(MoeBlock):  # type: ignore[misc] # mlx has no types
    def __call__(self, x: mx.array) -> mx.array:
        logits = self.gate(x)
        chosen = mx.argpartition(-logits, kth=self.top_k - 1, axis=-1)[..., : self.top_k]
        weights = mx.softmax(mx.take_along_axis(logits, chosen, axis=-1), axis=-1, precise=True)
        found: mx.array = (self.switch_mlp(x, chosen) * weights[..., None]).sum(axis=-2).astype(x.dtype)
        return found + self.shared_mlp(x) if self.use_shared_mlp else found


def sum_to_one(block: MoeBlock) -> None:
    if block.top_k > 1:
        become(block, Summing)


WHY = "the weights of the chosen experts do not sum to one"
MENDS = (Mend(original=MoeBlock, why=WHY, loaded=sum_to_one),)

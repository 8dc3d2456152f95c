"""Gemma 4's pictures, whose tokens see each other in layers with a window alone, as far back as the window, and in
order in the others. mlx-vlm 0.7.10 lets them see each other in all layers, beyond the window too."""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx_vlm.models.gemma4.language import Gemma4TextModel

from pippin.engines.language.upstream.caches import in_order, mutual
from pippin.engines.language.upstream.mends import exchanged


class SeeingWholeInWindows(Gemma4TextModel):  # type: ignore[misc] # mlx-vlm has no types
    def _make_masks(
        self, h: mx.array, cache: list[Any], mm_token_type_ids: mx.array | None = None
    ) -> list[Any]:
        """The masks of the layers. The token types are those of a whole prompt, whose pictures and frames (1 and 2)
        are taken for spans where the cache has none."""
        types = mm_token_type_ids if self.config.use_bidirectional_attention == "vision" else None
        if types is not None and types.shape[1] == h.shape[1]:
            shown = np.isin(np.array(types[0]), (1, 2)).astype(int)
            edges = np.flatnonzero(np.diff(shown, prepend=0, append=0)).tolist()
            cache = mutual(cache, list(zip(edges[::2], edges[1::2], strict=True)))
        ordered = in_order(cache)
        masks: list[Any] = super()._make_masks(h, ordered)
        if all(one is other for one, other in zip(cache, ordered, strict=True)):
            return masks
        mutually = super()._make_masks(h, cache)
        return [
            mask if layer.layer_type == "full_attention" else both
            for layer, mask, both in zip(self.layers, masks, mutually, strict=True)
        ]


MENDS = (
    exchanged(
        SeeingWholeInWindows,
        "the tokens of a picture see each other in layers without windows, and beyond windows",
    ),
)

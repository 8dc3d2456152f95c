"""LLaVA-NeXT's pictures, whose features mlx-vlm 0.7.10 puts in the places of other tokens."""

from mlx_vlm.models.llava_next.llava_next import Model

from pippin.engines.language.upstream.mends import exchanged
from pippin.engines.language.upstream.pictures import InRows

MENDS = (
    exchanged(
        type("InRows", (InRows, Model), {}),
        "all features of a tile stand in the place of one token of the many that are made for them",
    ),
)

"""LLaVA-NeXT's pictures, whose features mlx-vlm 0.7.10 puts in the places of other tokens."""

from mlx_vlm.models.llava_next.llava_next import Model

from pippin.engines.language.upstream.pictures import in_rows

MENDS = (in_rows(Model),)

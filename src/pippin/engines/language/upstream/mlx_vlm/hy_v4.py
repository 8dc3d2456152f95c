"""HY V4's index, which mlx-vlm 0.7.10 compiles for all shapes with the place of the last token of the first one.

It then takes other tokens than those of highest scores, and reads past the end of shorter texts. The class that it
derives from computes the same, and is not compiled.
"""

from mlx_vlm.models.hy_v4.indexer import HyV4Indexer

from pippin.engines.language.upstream.classes import become
from pippin.engines.language.upstream.mends import Mend

MENDS = (
    Mend(
        original=HyV4Indexer,
        why="compiled for all shapes with the place of the first one's last token",
        loaded=lambda module: become(module, HyV4Indexer.__base__),
    ),
)

"""DSpark as Gemma 4 has it: a drafter of blocks with embeddings and a projection of its own."""

from typing import Any

import mlx.nn as nn
from mlx_vlm.speculative.drafters.gemma4_dspark.gemma4_dspark import Gemma4DSparkDraftModel

from pippin.engines.language.drafters.blocks import BlockHead


class GemmaBlockHead(BlockHead):
    """A drafter whose checkpoint brings what others share with their model."""

    def __init__(self, inner: Gemma4DSparkDraftModel) -> None:
        super().__init__(inner)

    def share(self, model: nn.Module) -> None:
        pass

    def share_parts(self, embed: Any, project: Any) -> None:
        pass

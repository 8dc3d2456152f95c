"""A model in memory, and what goes with it."""

import mlx.nn as nn
from msgspec import Struct

from pippin.engines.language.model.head import Head
from pippin.engines.language.model.lora import Adapters
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.language.vision.encoder import Vision


class LoadedModel(Struct, frozen=True, kw_only=True):
    module: nn.Module
    tokenizer: Tokenizer
    vocabulary: int  # logits for each token
    head: Head
    adapters: Adapters
    vision: Vision
    joins_prompts: bool  # several prompts can be computed in one pass

"""Assistants, as Gemma 4 has them: a few layers that attend to the model's keys and values and have none of their own.

Each token is drafted from the model's embedding of the token before it and a state: the model's for the first token of
a chain, the assistant's own for the others. All tokens of a chain have one position, that of the newest token that the
model has computed.
"""

from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from pippin.engines.language.kv_cache.kinds.base import PromptCache


class Assistant(nn.Module):  # type: ignore[misc] # mlx has no types
    """An assistant of mlx-vlm, whose weights are float arrays."""

    def __init__(self, inner: Any, model: nn.Module, layer_types: list[str]) -> None:
        """Uses the embeddings of the model that it is for. Raises `AttributeError` for one that has none."""
        super().__init__()
        self.inner = inner
        self.own_bytes = 0  # of weights that are not the model's
        self._layer_types = layer_types  # of the model, whose first layers have caches
        inner.bind(model)
        if inner._input_embed is None:
            raise AttributeError("it has no embed_tokens")

    def draft(self, last: int, state: mx.array, caches: PromptCache, length: int, most: int) -> mx.array:
        """Drafts `most` tokens [1, most] after the token `last`, greedily. `state` [1, 1, size]: the model's, after its
        last norm, at the token before `last`. `caches`: the model's, which have the `length` tokens up to that one."""
        # Of each type of layer, the last one that has a cache: the model's later layers share its keys and values.
        lent = {
            kind: (cache.keys, cache.values)
            for kind, cache in zip(self._layer_types[: len(caches)], caches, strict=True)
        }
        self.inner.set_shared_kv(lent, length, position=length - 1, kv_valid_len=length)
        likeliest = partial(mx.argmax, axis=-1)
        found: mx.array = self.inner.draft_block(last, state, None, most + 1, likeliest, greedy=True)
        self.inner._shared_kv = None  # the caches write into these arrays where nobody else holds them
        return found.astype(mx.int32)

"""Heads of several blocks for multi-token prediction, as Inkling has them: each token of a chain is another block's.

A block is a decoder layer that starts from the state of the block before, the first from the model's, and the embedding
of a token, which is one further on for each block: block k takes the state of position p, the token at p + k + 1, and
says the one at p + k + 2. So each reads the whole sequence, as it was trained (vLLM's `MultiModuleMTPSpeculator`,
SGLang's `InklingMTPLayer`; mlx-vlm's later blocks see the chain alone).

Here all blocks take the same token at once, and each but the first the state that the one before had of the token
before. Then what a block keeps of a sequence has as many tokens as that of any other, and a token more is one pass.
"""

from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache

from pippin.engines.language.drafters.heads import PredictionHead
from pippin.engines.language.kv_cache.layout import mlx_lm_twin
from pippin.engines.language.kv_cache.slots import PromptCache
from pippin.engines.language.upstream.mends import apply
from pippin.engines.language.upstream.mlx_vlm import inkling

CONVOLUTIONS = 4  # of a layer, which keep their last inputs


class Link(NamedTuple):
    """Where a chain goes on."""

    states: mx.array  # [sequences, 1, size], of the block that said the last token
    said: int  # tokens of the chain so far
    wanted: int  # tokens of the whole chain


class Delay(nn.Module):  # type: ignore[misc] # mlx has no types
    """Gives to each token the state of the one before."""

    def __call__(self, states: mx.array, cache: Any) -> mx.array:
        """Of states [sequences, count, size]; the last one is kept for the next call."""
        last = cache[CONVOLUTIONS]
        if last is None:
            last = mx.zeros_like(states[:, :1])
        cache[CONVOLUTIONS] = states[:, -1:]
        return mx.concatenate([last, states[:, :-1]], axis=1)


class ChainHead(PredictionHead):
    """Inkling's blocks. The first gets states after the model's last norm, the others those of their neighbours as they
    are; embeddings are normalised by the model, and again by each block; and the model's projection says the words.
    Behind the last block's token that block goes on with its own states."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        apply(inkling.MENDS, inner)
        del inner.norm  # the model's last, which its states have gone through
        # A block begins with the first token that there is a state for.
        for place, block in enumerate(inner.blocks):
            block.transformer_block.self_attn.first = place
        self.delay = Delay()
        self._embed: Any = None
        self._project: Any = None

    def limit(self, tokens: int) -> None:
        self.inner.blocks = self.inner.blocks[:tokens]

    def share(self, model: nn.Module) -> None:
        whole = getattr(model, "language_model", model)
        self._embed, self._project = whole.model.embed, whole._logits_from_norm

    def make_cache(self) -> PromptCache:
        # The last of the states is what a block is given for the next token.
        return [mlx_lm_twin(CacheList(KVCache(), ArraysCache(CONVOLUTIONS + 1))) for _ in self.inner.blocks]

    def __call__(
        self, tokens: mx.array, cache: PromptCache, states: mx.array | Link | None = None
    ) -> mx.array:
        """The states of the first block, or of the one whose turn it is in a chain."""
        stop = len(self.inner.blocks)
        match states:
            case Link():
                start = min(states.said, stop - 1)
                given, stop = states.states, min(stop, max(states.wanted, start + 1))
            case None:
                start, given = 0, mx.zeros((*tokens.shape, self.state_size), self.dtype)
            case _:
                # The model divides what it gives to its projection, which is where these are taken.
                start, given = 0, states * self.inner._mup
        embedded = self._embed(tokens)
        found = own = self._pass(start, given, embedded, cache)
        for place in range(start + 1, stop):
            found = self._pass(place, self.delay(found, cache[place][1]), embedded, cache)
        return own

    def _pass(self, place: int, states: mx.array, embedded: mx.array, cache: PromptCache) -> mx.array:
        """The states [sequences, count, size] of one block."""
        block, own = self.inner.blocks[place], cache[place]
        joined = mx.concatenate([block.hidden_norm(states), block.embed_norm(embedded)], axis=-1)
        starts = mx.array(own[0].offset).reshape(-1, 1)
        is_there = mx.broadcast_to(starts + mx.arange(states.shape[1]) >= place, states.shape[:2])
        found: mx.array = block.transformer_block(
            block.input_proj(joined), cache=own, conv_mask=is_there if place else None
        )
        return found

    def link(self, own: mx.array, said: int, most: int) -> Link:
        return Link(own, said, most)

    def logits(self, states: mx.array) -> mx.array:
        found: mx.array = self._project(states)
        return found

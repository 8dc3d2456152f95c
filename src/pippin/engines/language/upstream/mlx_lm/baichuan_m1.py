"""Baichuan M1's attention, whose keys and values have those of the token before in them: it can take tokens back.

What it keeps for the next token, keys and values before they are mixed, is written by a module of its own. That is
called again for the tokens that stay (`kv_cache/replay.py`), while mlx-lm 0.32 writes it beside its keys and values.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.baichuan_m1 import Attention

from pippin.engines.language.classes import become
from pippin.engines.language.upstream.mends import Mend

Pair = list[mx.array | None]
"""Keys and values of one token, [sequences, heads, 1, size] each; None before the first token."""


class LastPair(nn.Module):  # type: ignore[misc] # mlx has no types for it
    """Keeps the unmixed keys and values of the last token."""

    def __init__(self, attention: "RewindableAttention") -> None:
        super().__init__()
        self._of_last = attention.pair_of_last  # no module, whose weights would be found twice

    def __call__(self, x: mx.array, state: Any, found: Pair, count: int) -> None:
        """Keep what the tokens in `x` [sequences, tokens, hidden] left; `found` is what all `count` tokens left."""
        for place, array in enumerate(found if x.shape[1] == count else self._of_last(x)):
            state[place] = array


class RewindableAttention(Attention):  # type: ignore[misc] # mlx-lm has no types
    def __call__(self, x: mx.array, mask: mx.array | None = None, cache: Any = None) -> mx.array:
        if cache is None:
            alone: mx.array = super().__call__(x, mask)
            return alone
        found: Pair = [cache[0][0], cache[0][1]]
        attended: mx.array = super().__call__(x, mask, (found, cache[1]))
        self.last(x, cache[0], found, x.shape[1])
        return attended

    def pair_of_last(self, x: mx.array) -> Pair:
        """Computed from the inputs of tokens [sequences, tokens, hidden]."""
        projected = self.W_pack(x[:, -1:])[..., x.shape[2] :]
        heads = projected.reshape(x.shape[0], 1, 2 * self.num_kv_heads, self.head_dim).transpose(0, 2, 1, 3)
        return [heads[:, : self.num_kv_heads], heads[:, self.num_kv_heads :]]


def _rewindable(attention: Attention) -> None:
    become(attention, RewindableAttention)
    attention.last = LastPair(attention)


MENDS = (
    Mend(
        original=Attention,
        kind="batching",
        why="the last token's unmixed keys and values are written beside the mixed ones, so no token can be taken back",
        loaded=_rewindable,
    ),
)

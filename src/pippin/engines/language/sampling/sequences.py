"""Sequences of tokens that a generation_config.json forbids or biases: the last token's logit, after the others."""

import math
from typing import Final

import mlx.core as mx
import numpy as np

from pippin.core.parameters import OfEveryAnswer
from pippin.engines.language.sampling.penalties import History

ANY: Final = -2
"""Stands before the shorter of several sequences, and is met by any token; -1 stands before a history."""


class Sequences:
    """Sequences of two tokens and more, and the size of those that may not come twice, for all rows alike."""

    def __init__(self, asked: OfEveryAnswer) -> None:
        several = asked.several
        self._size = asked.no_repeat_ngram_size or 0
        self._ends = np.array([ids[-1] for ids in several], np.int32)
        self._biases = mx.array(list(several.values()), mx.float32)
        width = max(map(len, several), default=1) - 1
        before = [(*[ANY] * (width + 1 - len(ids)), *ids[:-1]) for ids in several]
        self._before = mx.array(np.array(before, np.int32).reshape(len(several), width))

    def __bool__(self) -> bool:
        return bool(self._size or self._ends.size)

    def apply(self, logits: mx.array, history: History) -> mx.array:
        """The logits [R, V] of the next token after `history`. A row of which nothing would be left stays as it is: a
        grammar's mask, which came before, goes first."""
        changed = self._repeated(logits, history)
        if self._ends.size:
            last = _last(history, self._before.shape[1])[:, None]
            met = mx.all((last == self._before) | (self._before == ANY), axis=-1)
            known = self._ends < logits.shape[-1]
            added = mx.where(met & mx.array(known), self._biases, 0.0)
            changed = _added(changed, mx.array(np.where(known, self._ends, 0)), added)
        return mx.where(mx.max(changed, axis=-1, keepdims=True) > -math.inf, changed, logits)

    def _repeated(self, logits: mx.array, history: History) -> mx.array:
        """The logits without the tokens that would complete what prompt and output hold already (transformers'
        `NoRepeatNGramLogitsProcessor`)."""
        places = history.tokens.shape[1] - self._size + 1
        if not self._size or places < 1:
            return logits
        found = mx.array(np.arange(self._size, places + self._size) <= history.lengths[:, None])
        if self._size > 1:
            last = _last(history, self._size - 1)
            for place in range(self._size - 1):
                found = found & (history.tokens[:, place : place + places] == last[:, place : place + 1])
        return _added(logits, history.tokens[:, self._size - 1 :], mx.where(found, -math.inf, 0.0))


def _last(history: History, count: int) -> mx.array:
    """The last `count` tokens of each row [R, count]; -1 before the first one."""
    places = history.lengths[:, None] + np.arange(-count, 0, dtype=np.int32)
    tokens = mx.take_along_axis(history.tokens, mx.array(np.maximum(places, 0)), axis=1)
    return mx.where(mx.array(places >= 0), tokens, -1)


def _added(logits: mx.array, tokens: mx.array, biases: mx.array) -> mx.array:
    """The logits [R, V] with `biases` [R, N] added to those of `tokens` [R, N] or [N]."""
    return logits.at[mx.arange(logits.shape[0])[:, None], tokens].add(biases)

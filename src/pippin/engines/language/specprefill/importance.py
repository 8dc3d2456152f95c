"""The importance of a prompt's tokens: how much a draft model attends to them when it begins to answer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from pippin.core.errors import ServerError
from pippin.engines.language.kv_cache.layout import CacheLayout, arrays_of
from pippin.engines.language.kv_cache.slots import PromptCache

LOOK_AHEAD: Final = 8
"""Tokens that the draft model writes after the prompt, greedily, and whose attention is observed."""

LastLogits = Callable[[mx.array, PromptCache], mx.array]
"""A model: takes tokens [1, n] that follow those in a cache, returns the logits [1, vocabulary] after the last."""


@dataclass(eq=False)
class Scoring:
    """A prompt that the draft model reads."""

    tokens: tuple[int, ...]
    cache: PromptCache
    read: int = 0  # tokens
    next_token: mx.array | None = field(default=None, repr=False)  # [1, 1], once all are read

    @property
    def remaining(self) -> int:
        return len(self.tokens) - self.read


class DraftScorer:
    """A draft model that scores prompts. It reads them a chunk at a time."""

    def __init__(self, run: LastLogits, layout: CacheLayout, cost: float) -> None:
        """`run` is the draft model. `cost` is that of one of its tokens, as a fraction of the main model's. Raises
        `ServerError("load_failed")` for a model whose attention cannot be observed."""
        self._run = run
        self._layout = layout
        self.cost = cost
        tried = self.open((1, 2, 3))
        self.read(tried, 3)
        if not np.isfinite(found := self.importance(tried)).all() or not found.any():
            message = "The model of specprefill_draft_model does not show what it attends to: choose another."
            raise ServerError("load_failed", message, "specprefill_draft_model")

    def open(self, tokens: Sequence[int]) -> Scoring:
        cache = self._layout.new_prompt_cache(len(tokens) + LOOK_AHEAD)
        return Scoring(tuple(tokens), cache)

    def read(self, scoring: Scoring, most: int) -> int:
        """Read up to `most` more tokens; returns how many were read."""
        count = min(most, scoring.remaining)
        inputs = mx.array([scoring.tokens[scoring.read : scoring.read + count]])
        logits = self._run(inputs, scoring.cache)
        scoring.read += count
        if not scoring.remaining:
            scoring.next_token = mx.argmax(logits[:, None], axis=-1)
            mx.eval(scoring.next_token)
        mx.eval(arrays_of(scoring.cache))
        return count

    def importance(self, scoring: Scoring) -> NDArray[np.float32]:
        """The importance of each token of a prompt that was read: the largest attention that any head of any layer pays
        to it, averaged over the tokens that the draft model writes next."""
        token = scoring.next_token
        assert token is not None
        length = len(scoring.tokens)
        total = mx.zeros((length,))
        for _ in range(LOOK_AHEAD):
            seen = _MostSeen(length)
            with _attention_shown_to(seen):
                logits = self._run(token, scoring.cache)
            total = total + seen.most
            token = mx.argmax(logits[:, None], axis=-1)
            mx.eval(total, token)
        found: NDArray[np.float32] = np.array(total / LOOK_AHEAD, dtype=np.float32)
        return found

    def prompt_bytes(self, tokens: int) -> int:
        """Bytes that a prompt takes while it is scored."""
        return self._layout.prompt_bytes(tokens + LOOK_AHEAD)


class _MostSeen:
    """The largest attention to each token of a prompt, over all heads of all observed layers."""

    def __init__(self, length: int) -> None:
        self._length = length
        self.most = mx.zeros((length,))

    def __call__(self, queries: mx.array, keys: mx.array, scale: float) -> None:
        """Queries [1, heads, 1, size], and keys [1, KV heads, tokens, size]."""
        heads, groups = queries.shape[1], keys.shape[1]
        folded = queries.astype(mx.float32).reshape(groups, heads // groups, -1) * scale
        scores = folded @ keys[0].astype(mx.float32).swapaxes(-1, -2)
        weights = mx.softmax(scores, axis=-1)[..., : self._length]
        self.most = mx.maximum(self.most, weights.reshape(-1, self._length).max(axis=0))


@contextmanager
def _attention_shown_to(look: Callable[[mx.array, mx.array, float], None]) -> Iterator[None]:
    """Call `look` with the queries and keys of each attention that is computed meanwhile. All models of mlx-lm compute
    attention by one function of MLX, which is replaced here; nothing else in this process calls it at that time."""
    fast = vars(mx.fast)
    own = mx.fast.scaled_dot_product_attention

    def attention(q: mx.array, k: mx.array, v: mx.array, *, scale: float, **options: Any) -> mx.array:
        look(q, k, scale)
        return own(q, k, v, scale=scale, **options)

    fast["scaled_dot_product_attention"] = attention
    try:
        yield
    finally:
        fast["scaled_dot_product_attention"] = own

"""Computing the chunks of several short prompts in one pass, each in its own cache.

A product of few rows costs nearly what one of many costs: the weights are read either way. Long chunks fill the
device by themselves and gain nothing.
"""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache

from pippin.engines.language.head import Head
from pippin.engines.language.prefill import note_logits, start_computing
from pippin.engines.language.row_caches import RowCache
from pippin.engines.language.rows import Prompt

MOST_PADDING = 1.5  # padded tokens for each real one
MOST_CONTEXT = 8192  # tokens of all prompts' caches, which a pass copies side by side


class JoinedCache:
    """One layer's caches of several prompts, as a model sees one cache. Rows are padded on the right."""

    def __init__(self, caches: Sequence[KVCache], counts: Sequence[int]) -> None:
        self._caches = caches
        self._counts = counts
        self._before = [cache.offset for cache in caches]
        self._longest = max(before + count for before, count in zip(self._before, counts, strict=True))
        self._starts = mx.array(self._before, dtype=mx.int32)
        self._written = False

    @property
    def offset(self) -> mx.array:
        return self._starts + mx.array(list(self._counts), dtype=mx.int32) if self._written else self._starts

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Give each cache its own tokens; all keys and values, [prompts, heads, longest, dim]."""
        self._written = True
        for row, (cache, count) in enumerate(zip(self._caches, self._counts, strict=True)):
            own = slice(row, row + 1)
            cache.update_and_fetch(keys[own, :, :count], values[own, :, :count])
        # All written before any is looked at: they may lie in one array, which would be copied otherwise.
        found = [cache.keys_and_values() for cache in self._caches]
        return self._side_by_side([pair[0] for pair in found]), self._side_by_side(
            [pair[1] for pair in found]
        )

    def _side_by_side(self, parts: list[mx.array]) -> mx.array:
        padded = [
            mx.pad(part, [(0, 0), (0, 0), (0, self._longest - part.shape[2]), (0, 0)])
            if part.shape[2] < self._longest
            else part
            for part in parts
        ]
        return mx.concatenate(padded)

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        queries = (self._starts[:, None] + mx.arange(N))[..., None]
        keys = mx.arange(self._longest)
        mask = keys <= queries
        if window_size is not None:
            mask = mask & (keys > queries - window_size)
        return mask[:, None]


def can_join(cache: RowCache) -> bool:
    return all(type(layer) is KVCache for layer in cache)


def fits(counts: Sequence[int], contexts: Sequence[int]) -> bool:
    """Whether chunks of so many tokens, after so many each, are worth computing together."""
    width = max(counts)
    longest = max(context + count for context, count in zip(contexts, counts, strict=True))
    return width * len(counts) <= MOST_PADDING * sum(counts) and longest * len(counts) <= MOST_CONTEXT


def compute_together(
    model: nn.Module, head: Head, prompts: Sequence[Prompt], counts: Sequence[int], *, wait: bool
) -> None:
    """As `compute_chunk`, with the next `counts` tokens of each prompt."""
    rows = [prompt.cache or [] for prompt in prompts]
    width = max(counts)
    tokens = []
    for prompt, count in zip(prompts, counts, strict=True):
        start = prompt.ticket.computed
        tokens.append([*prompt.tokens[start : start + count], *[0] * (width - count)])
    layers = [JoinedCache(caches, counts) for caches in zip(*rows, strict=True)]
    places = [count - 1 for count in counts]
    with head.only(places):
        logits = head.last(model(mx.array(tokens), cache=layers), places)
    for row, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
        note_logits(prompt, count, logits[row : row + 1])
    start_computing(prompts, wait=wait)

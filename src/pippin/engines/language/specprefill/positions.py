"""Computes tokens at given positions: caches that tell the model where in its text each token is."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from pippin.core.errors import ServerError
from pippin.engines.language.kv_cache.branches import rotated_at
from pippin.engines.language.kv_cache.kinds.keys_and_values import KeysAndValuesKind
from pippin.engines.language.kv_cache.layout import CacheLayout, arrays_of, new_prompt_cache
from pippin.engines.language.kv_cache.slots import PromptCache
from pippin.engines.language.specprefill.selection import Selection

TRIED = (range(9), range(20, 31), range(40, 48))  # positions kept of the prompt that a model is tested with
TOLERANCE = {mx.float32: 0.02}  # of the largest logit: far above rounding, far below a wrong position
TOLERANCE_OF_HALVES = 0.25
FAILURES = (
    ValueError,
    TypeError,
    AttributeError,
    RuntimeError,
    IndexError,
)  # what a model raises for such a cache


class Placed:
    """One layer's cache, whose next tokens have given positions. Models take rotary positions from `offset`; masks and
    places in the cache count the tokens that are there."""

    def __init__(self, cache: Any, positions: mx.array) -> None:
        self._cache = cache
        self.offset = positions  # [1, tokens]

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        return self._cache.update_and_fetch(keys, values)

    def make_mask(self, *given: Any, **named: Any) -> Any:
        return self._cache.make_mask(*given, **named)


@contextmanager
def placed(cache: PromptCache, positions: Sequence[int]) -> Iterator[list[Placed]]:
    """The caches of all layers, whose next tokens have these positions, for a call of the model in this context."""
    wanted = mx.array([list(positions)], dtype=mx.int32)
    with rotated_at(wanted):
        yield [Placed(layer, wanted) for layer in cache]


class _Hiding:
    """One layer's cache of a whole prompt, whose mask hides the tokens that are left out."""

    def __init__(self, cache: Any, hidden: mx.array) -> None:
        self._cache = cache
        self._hidden = hidden  # [tokens]

    @property
    def offset(self) -> int:
        return int(self._cache.offset)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        return self._cache.update_and_fetch(keys, values)

    def make_mask(self, N: int, *_: Any, **__: Any) -> mx.array:
        places = mx.arange(N)
        # A token that is left out sees itself, so that its softmax is not empty.
        seen = (places[:, None] >= places) & (~self._hidden | (places[:, None] == places))
        return seen[None, None]


def require_positions(model: nn.Module, layout: CacheLayout, vocabulary: int) -> None:
    """Raises `ServerError("load_failed")` for a model that cannot compute some tokens of a prompt at their positions.

    This is tested: the last logits of a prompt with gaps must equal those of the whole prompt with the left-out tokens
    hidden from attention.
    """
    if not all(isinstance(kind, KeysAndValuesKind) for kind in layout.kinds):
        raise _refused(
            "it has layers that do not keep keys and values of all tokens (sliding, recurrent or latent)"
        )
    selection = Selection(TRIED, TRIED[-1].stop)
    tokens = [(7 * place + 3) % min(vocabulary, 997) for place in range(selection.length)]
    try:
        found = _last_logits_with_gaps(model, tokens, selection)
        expected = _last_logits_hiding(model, tokens, selection)
        mx.eval(found, expected)
    except FAILURES as error:
        raise _refused(f"it takes no positions from its caches ({type(error).__name__}: {error})") from error
    tolerance = TOLERANCE.get(found.dtype, TOLERANCE_OF_HALVES)
    difference = mx.abs(found - expected).max() / mx.maximum(mx.abs(expected).max(), 1e-6)
    if not float(difference) <= tolerance:
        raise _refused("it computes tokens behind a gap otherwise than in their place")


def _last_logits_with_gaps(model: nn.Module, tokens: Sequence[int], selection: Selection) -> mx.array:
    cache, kept = new_prompt_cache(model), selection.of(tokens)
    half = selection.kept // 2
    for part in (range(half), range(half, selection.kept)):
        with placed(cache, [selection.position(index) for index in part]) as layers:
            logits = model(mx.array([kept[part.start : part.stop]]), cache=layers)
        mx.eval(arrays_of(cache))
    last: mx.array = logits[0, -1]
    return last


def _last_logits_hiding(model: nn.Module, tokens: Sequence[int], selection: Selection) -> mx.array:
    kept = {place for span in selection.spans for place in span}
    hidden = mx.array([place not in kept for place in range(selection.length)])
    cache = [_Hiding(layer, hidden) for layer in new_prompt_cache(model)]
    last: mx.array = model(mx.array([tokens]), cache=cache)[0, -1]
    return last


def _refused(reason: str) -> ServerError:
    return ServerError(
        "load_failed",
        f"specprefill cannot be used with this model: {reason}. Start without it.",
        "specprefill",
    )

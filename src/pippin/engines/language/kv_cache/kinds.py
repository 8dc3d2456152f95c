"""The cache of one row while its prompt is computed, and what is known of its layers.

These are the model's own caches, as mlx-lm makes them; `arenas` holds the rows that decode together.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

RowCache = list[Any]
"""One cache for each layer, as the model makes them."""


def new_row_cache(model: nn.Module, room: int | None = None) -> RowCache:
    """`room`: tokens that it will come to hold, which it then takes memory for at once instead of growing step by step,
    each time with a copy of all."""
    caches: RowCache = make_prompt_cache(model)
    if room:
        for layer in leaves(caches):
            if type(layer) is KVCache:
                layer.step = room
    return caches


def leaves(caches: list[Any] | tuple[Any, ...]) -> Iterator[Any]:
    """The caches of all layers, lists of caches taken apart."""
    for cache in caches:
        if type(cache) is CacheList:
            yield from leaves(cache.caches)
        else:
            yield cache


def can_batch(caches: RowCache) -> bool:
    """Whether Pippin's arenas know all of these kinds."""
    return all(
        type(cache) in (KVCache, ArraysCache) or (type(cache) is RotatingKVCache and cache.keep == 0)
        for cache in leaves(caches)
    )


def can_rewind(caches: RowCache) -> bool:
    """Whether every layer can forget its last tokens, in an arena with slack."""
    return all(type(cache) in (KVCache, RotatingKVCache) for cache in leaves(caches))


def can_trim(caches: RowCache) -> bool:
    """Whether every layer's own cache, not only its arena, can forget its last tokens at any length."""
    return all(type(cache) is KVCache for cache in leaves(caches))


def arrays_of(caches: RowCache) -> list[mx.array]:
    """What must be evaluated for a prompt's chunk to be computed."""
    return [array for cache in caches for array in _arrays(cache.state)]


def _arrays(value: Any) -> Iterator[mx.array]:
    """No closure that calls itself: such a cycle would hold the arrays, and MLX would copy what it could write into."""
    if isinstance(value, mx.array):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _arrays(item)


def measure_rows(
    probe: RowCache, kv_bits: int | None = None, group_size: int = 64, slack: int = 0
) -> Callable[[int], int]:
    """Bytes of one row as a function of its places, by the shapes of one that has run; rings have `slack` more."""
    per_token, fixed = 0, 0
    rings: Counter[int] = Counter()  # bytes of a token, by places
    for cache in leaves(probe):
        if type(cache) is RotatingKVCache:
            rings[cache.max_size + slack] += _token_bytes(cache.keys) + _token_bytes(cache.values)
        elif type(cache) is KVCache:
            per_token += sum(_token_bytes(array, kv_bits, group_size) for array in (cache.keys, cache.values))
        else:
            fixed += sum(array.nbytes for array in arrays_of([cache]))

    def row_bytes(places: int) -> int:
        return fixed + per_token * places + sum(size * min(places, ring) for ring, size in rings.items())

    return row_bytes


def _token_bytes(array: mx.array, bits: int | None = None, group_size: int = 64) -> int:
    """Of an array [1, heads, tokens, dim]; quantised, a group has a scale and a bias beside its bits."""
    values = array.shape[1] * array.shape[3]
    if bits is None:
        return values * array.itemsize
    return values * bits // 8 + 2 * (values // group_size) * array.itemsize

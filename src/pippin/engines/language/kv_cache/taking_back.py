"""Taking tokens back from a sequence's own caches, of whatever class: by trimming where that is sure to work, else from
copies of how they were before the step.

Copies share arrays with what they are of, until a step writes there: MLX then copies each array that it writes into,
whole. So a step costs a copy of each window and state, and of whole keys and values only where their class is unknown.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from pippin.engines.language.kv_cache.copies import copy_of
from pippin.engines.language.kv_cache.kinds.attention import IndexCache
from pippin.engines.language.kv_cache.kinds.chunked import ChunkCache
from pippin.engines.language.kv_cache.layout import arrays_of, leaves
from pippin.engines.language.kv_cache.slots import PromptCache

LIBRARIES = ("mlx_lm.models.cache", "mlx_vlm.models.cache")
OF_TOKENS = ("KVCache", "QuantizedKVCache", "RotatingKVCache", "ChunkedKVCache")
"""Their classes that hold something for each token, and forget the last ones as they say: `ConcatenateKVCache`, for
one, counts them as gone and goes on to show them."""
OTHERS = ("ArraysCache", "ConcatenateKVCache", "SimpleKVCache")
"""Their classes that a step of several tokens leaves as those tokens one by one do, but that cannot be trimmed."""
OWN = (IndexCache, ChunkCache)
"""Classes of this package that do as those of tokens."""


def is_known(leaf: Any) -> bool:
    """Whether a cache is known to take any number of tokens in a step, however many it has."""
    return _is_one_of(leaf, OF_TOKENS + OTHERS)


def _trims(leaf: Any, count: int) -> bool:
    """Whether a cache can forget some of the next `count` tokens by itself. A ring cannot once it has gone around."""
    return _is_one_of(leaf, OF_TOKENS) and leaf.offset + count < getattr(leaf, "max_size", float("inf"))


def _is_one_of(leaf: Any, names: tuple[str, ...]) -> bool:
    kind = type(leaf)
    return kind in OWN or (kind.__module__ in LIBRARIES and kind.__name__ in names)


def copied_bytes(cache: PromptCache, count: int) -> int:
    """What a step of `count` tokens copies of a sequence's caches at most, before it is known which of them stay."""
    if count == 1:
        return 0
    copied = [leaf for leaf in leaves(cache) if not _trims(leaf, count)]
    return sum(array.nbytes for array in arrays_of(copied))


class Before:
    """A sequence's own caches before a step of several tokens."""

    def __init__(self, cache: PromptCache, count: int) -> None:
        """The step has `count` tokens."""
        self._cache = cache
        self._count = count
        self._copies = [None if _trims(leaf, count) else copy_of(leaf) for leaf in leaves(cache)]

    def forget(self, forgotten: int, compute: Callable[[int], Any]) -> None:
        """After the step: take its last tokens back. `compute` is to compute the first so many of them again, where
        that is needed."""
        if not forgotten:
            return
        again = any(copy is not None for copy in self._copies)
        for leaf, copy in zip(leaves(self._cache), self._copies, strict=True):
            if copy is None:
                leaf.trim(self._count if again else forgotten)
            else:
                vars(leaf).clear()
                vars(leaf).update(vars(copy))
        kept = self._count - forgotten
        if again and kept:
            compute(kept)
            mx.async_eval(*arrays_of(self._cache))  # type: ignore[no-untyped-call]

"""Sliding attention: a token sees as many before it, wherever it stands."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache

from pippin.engines.language.kv_cache.kinds.base import TokenArray
from pippin.engines.language.kv_cache.kinds.local import LocalKind


@dataclass(frozen=True, kw_only=True)
class SlidingKind(LocalKind):
    serves = (RotatingKVCache,)

    sinks: int  # first tokens of a sequence that are attended to for ever

    @classmethod
    def of(cls, cache: Any) -> Self:
        keys, values = TokenArray.of(cache.keys), TokenArray.of(cache.values)
        return cls(keys=keys, values=values, span=cache.max_size, sinks=cache.keep)

    @classmethod
    def like(cls, cache: Any, beside: Sequence[Any]) -> RotatingKVCache:
        return RotatingKVCache(max_size=cache.max_size, keep=cache.keep)

    @property
    def batches(self) -> bool:
        return self.sinks == 0

    def seen(self, keys: mx.array, queries: mx.array, span: int) -> mx.array:
        return keys > queries - span

    def first_seen(self, stop: int) -> int:
        return max(stop - self.span, 0)

    def new(self) -> RotatingKVCache:
        return RotatingKVCache(max_size=self.span)

    def ordered(self, cache: Any) -> Sequence[mx.array]:
        return cache._temporal_order(cache.keys), cache._temporal_order(cache.values)

    def put(self, cache: Any, arrays: Sequence[mx.array | None], stop: int) -> None:
        cache.keys, cache.values = arrays
        cache.offset, cache._idx = stop, 0 if cache.keys is None else cache.keys.shape[2]


KIND = SlidingKind

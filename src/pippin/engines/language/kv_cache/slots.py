"""A layer's cache of a prompt, in the slot where its row will decode: what is computed there need not be copied."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import CacheList, KVCache

from pippin.engines.language.kv_cache.attention import Arena, ArenaList, AttentionArena
from pippin.engines.language.kv_cache.kinds import RowCache, leaves


class SlotCache(KVCache):  # type: ignore[misc] # mlx-lm has no types
    """As mlx-lm's `KVCache` to a model; keys and values are views of an arena's slot, [1, heads, capacity, dim]."""

    def __init__(self, arena: AttentionArena, slot: int) -> None:
        self.arena = arena
        self.slot = slot
        self.offset = 0

    @property
    def keys(self) -> mx.array | None:
        return self._part(0)

    @property
    def values(self) -> mx.array | None:
        return self._part(1)

    def _part(self, index: int) -> mx.array | None:
        return self.arena.parts[index][self.slot : self.slot + 1] if self.arena.parts else None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        self.arena.write(self.slot, keys, values, self.offset)
        stand_at(self, self.offset + keys.shape[2])
        return self.keys_and_values()


def allot(layer: KVCache, keys: mx.array, values: mx.array) -> None:
    """Places in a new cache, for such arrays [any, heads, any, dim]."""
    if isinstance(layer, SlotCache):
        layer.arena.allot([keys, values])
    else:
        layer.keys, layer.values = (
            mx.zeros((1, part.shape[1], layer.step, part.shape[3]), part.dtype) for part in (keys, values)
        )


def stand_at(layer: KVCache, tokens: int) -> None:
    """So many tokens lie there. A step that computes a slot in passing writes behind them."""
    layer.offset = tokens
    if isinstance(layer, SlotCache):
        layer.arena.window.lengths[layer.slot] = tokens


@dataclass(eq=False, kw_only=True)
class Reservation:
    """A slot that is kept for a row to come."""

    slot: int
    length: int  # tokens of its prompt
    cache: RowCache  # in which to compute it: in the slot, as far as the layers' arenas allow that

    def move(self, slot: int) -> None:
        self.slot = slot
        for layer in slot_caches(self.cache):
            layer.slot = slot


def slot_caches(cache: RowCache) -> Iterator[SlotCache]:
    return (layer for layer in leaves(cache) if isinstance(layer, SlotCache))


def in_slot(cache: RowCache, arenas: list[Arena], slot: int) -> RowCache:
    """A row's cache with what can be computed in the slot lying there."""
    found: RowCache = []
    for layer, arena in zip(cache, arenas, strict=True):
        match arena:
            case ArenaList():
                found.append(CacheList(*in_slot(layer.caches, arena.arenas, slot)))
            case _ if type(arena) is AttentionArena:
                found.append(SlotCache(arena, slot))
            case _:
                found.append(layer)
    return found

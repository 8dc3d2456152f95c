"""Full attention: keys and values of every token, which a batch keeps as they are computed or in few bits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from pippin.engines.language.kv_cache.kinds.base import CacheKind, TokenArray
from pippin.engines.language.kv_cache.kinds.keys_and_values import (
    AttentionInSlot,
    BatchedAttention,
    IndexCache,
    JoinedAttention,
)
from pippin.engines.language.kv_cache.kinds.quantized import BatchedQuantized, RoundedCache, quantized_bytes
from pippin.engines.language.kv_cache.slots import Slot, SlotTable


@dataclass(frozen=True, kw_only=True)
class AttentionKind(CacheKind):
    """Prompts have mlx-lm's `KVCache`. What a batch keeps in few bits is quantised when a prompt is stored in its slot:
    until then it lies beside it."""

    serves = (KVCache, IndexCache)
    twins = ("HyV4KVCache",)  # which takes memory in other steps
    rewinds = joins = True

    keys: TokenArray
    values: TokenArray
    key_bits: int = 0  # with those of values; 0 where both are kept as they are computed
    value_bits: int = 0
    group_size: int = 0

    @classmethod
    def of(cls, cache: Any) -> Self:
        return cls(keys=TokenArray.of(cache.keys), values=TokenArray.of(cache.values))

    def slot_bytes(self, capacity: int, slack: int) -> int:
        if not self.key_bits:
            return self.prompt_bytes(capacity, 0)
        keys = quantized_bytes(self.keys, self.key_bits, self.group_size)
        return (keys + quantized_bytes(self.values, self.value_bits, self.group_size)) * capacity

    def prompt_bytes(self, capacity: int, chunk: int) -> int:
        return (self.keys.token_bytes + self.values.token_bytes) * capacity

    def presize(self, cache: Any, tokens: int) -> None:
        cache.step = tokens

    def batched(self, slots: SlotTable) -> BatchedAttention:
        if self.key_bits:
            return BatchedQuantized(slots, self.key_bits, self.value_bits, self.group_size)
        return BatchedAttention(slots)

    @property
    def in_slots(self) -> bool:
        return not self.key_bits

    def in_slot(self, batched: Any, slot: Slot) -> AttentionInSlot:
        return AttentionInSlot(batched, slot)

    def joined(self, caches: Sequence[Any], counts: Sequence[int]) -> JoinedAttention:
        return JoinedAttention(caches, counts)

    def quantized(self, key_bits: int, value_bits: int, group_size: int) -> CacheKind:
        if not self.values.size:
            return self  # an index chooses by its keys: other tokens would be attended to
        return replace(self, key_bits=key_bits, value_bits=value_bits, group_size=group_size)

    def rounded(self, cache: Any) -> Any:
        if not self.key_bits:
            return cache
        return RoundedCache(cache, (self.key_bits, self.value_bits), self.group_size)

    @property
    def token_arrays(self) -> tuple[TokenArray, ...]:
        return (self.keys, self.values) if self.values.size else (self.keys,)

    @property
    def block_form(self) -> tuple[int, int] | None:
        return (
            (self.key_bits, self.group_size) if self.key_bits and self.key_bits == self.value_bits else None
        )

    def cut(self, cache: Any) -> list[mx.array]:
        return [cache.keys, cache.values][: len(self.token_arrays)]

    def fill(self, cache: Any, arrays: Sequence[mx.array]) -> None:
        keys, *values = arrays
        cache.update_and_fetch(keys, *(values or [keys]))


KIND = AttentionKind

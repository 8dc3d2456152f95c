"""Full attention: keys and values of every token, as they are computed."""

from dataclasses import dataclass

from mlx_lm.models.cache import KVCache

from pippin.engines.language.kv_cache.kinds import quantized
from pippin.engines.language.kv_cache.kinds.base import CacheKind
from pippin.engines.language.kv_cache.kinds.keys_and_values import IndexCache, KeysAndValuesKind


@dataclass(frozen=True, kw_only=True)
class AttentionKind(KeysAndValuesKind):
    serves = (KVCache, IndexCache)
    twins = ("HyV4KVCache",)  # which takes memory in other steps
    in_slots = host_fills = True

    def quantized(self, key_bits: int, value_bits: int, group_size: int) -> CacheKind:
        if not self.values.size:
            return self  # an index chooses by its keys: other tokens would be attended to
        return quantized.kind_of(self, key_bits, value_bits, group_size)

    @property
    def quantized_sizes(self) -> tuple[int, ...]:
        return (self.keys.size, self.values.size) if self.values.size else ()


KIND = AttentionKind

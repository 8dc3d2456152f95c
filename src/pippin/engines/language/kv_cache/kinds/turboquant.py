"""Full attention whose keys and values are kept by TurboQuant (arXiv:2504.19874), once their prompt is computed.

The codec is mlx-vlm's: a vector is its norm, in float16, and the numbers of the codebook's values that are nearest to
its rotated direction, packed in 32-bit words.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from pippin.engines.language.kv_cache.kinds.base import TokenArray
from pippin.engines.language.kv_cache.kinds.keys_and_values import BatchedAttention, KeysAndValuesKind
from pippin.engines.language.kv_cache.slots import SlotTable

NORM_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class TurboQuantKind(KeysAndValuesKind):
    """Made of `AttentionKind.turbo_quantized`. Prompts have mlx-lm's `KVCache` beside their slot, and the prefix cache
    keeps keys and values as they were computed."""

    key_bits: int
    value_bits: int

    def slot_bytes(self, capacity: int, slack: int) -> int:
        both = ((self.keys, self.key_bits), (self.values, self.value_bits))
        return sum(_token_bytes(array, bits) for array, bits in both) * capacity

    def batched(self, slots: SlotTable) -> "BatchedTurboQuant":
        return BatchedTurboQuant(slots, self)


class BatchedTurboQuant(BatchedAttention):
    """Four buffers: norms [slots, heads, capacity, 1] and packed words [slots, heads, capacity, words] of keys, and
    those of values. The attention of each layer gets them unpacked, which costs memory for one layer at a time."""

    def __init__(self, slots: SlotTable, kind: TurboQuantKind) -> None:
        super().__init__(slots)
        self.form = kind.key_bits, kind.value_bits
        self._types = kind.keys.dtype, kind.values.dtype
        self._codecs = _codecs(kind)

    def _encoded(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        states = [codec.quantize(array) for codec, array in zip(self._codecs, (keys, values), strict=True)]
        return [part for state in states for part in (state.norms[..., None], state.indices)]

    def _offered(self, parts: list[mx.array]) -> Any:
        return self._decoded(parts)

    def _decoded(self, parts: list[mx.array]) -> tuple[mx.array, mx.array]:
        from mlx_vlm.turboquant import TurboQuantMSEState

        keys, values = (
            codec.dequantize(TurboQuantMSEState(norms[..., 0], indices)).astype(dtype)
            for codec, norms, indices, dtype in zip(
                self._codecs, parts[::2], parts[1::2], self._types, strict=True
            )
        )
        return keys, values


def _codecs(kind: TurboQuantKind) -> tuple[Any, Any]:
    """mlx-vlm's codecs of keys and values, which depend on nothing but sizes and bits."""
    from mlx_vlm.turboquant import TurboQuantKVCache

    cache = TurboQuantKVCache(kind.key_bits, key_bits=kind.key_bits, value_bits=kind.value_bits)
    cache.update_and_fetch(kind.keys.zeros(1, 1), kind.values.zeros(1, 1))
    return cache.key_codec, cache.value_codec


def _token_bytes(array: TokenArray, bits: int) -> int:
    words = -(-array.size * bits // 32)
    return array.heads * (4 * words + NORM_BYTES)

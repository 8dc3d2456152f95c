"""Full attention whose keys and values are kept in few bits once their prompt is computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from pippin.engines.language.kv_cache.kinds.attention import AttentionKind, BatchedAttention
from pippin.engines.language.kv_cache.kinds.base import TokenArray
from pippin.engines.language.kv_cache.slots import SlotTable


@dataclass(frozen=True, kw_only=True)
class QuantizedKind(AttentionKind):
    """Made of `AttentionKind.quantized`. Prompts have mlx-lm's `KVCache` beside their slot, and are quantised when they
    are stored there; so are blocks of the prefix cache."""

    serves = ()
    in_slots = host_fills = False
    packed_arrays = 3

    bits: int
    group_size: int

    def slot_bytes(self, capacity: int, slack: int) -> int:
        return (self._token_bytes(self.keys) + self._token_bytes(self.values)) * capacity

    def _token_bytes(self, array: TokenArray) -> int:
        """A group has a scale and a bias beside its bits."""
        values = array.heads * array.size
        return values * self.bits // 8 + 2 * (values // self.group_size) * array.dtype.size

    def batched(self, slots: SlotTable) -> "BatchedQuantized":
        return BatchedQuantized(slots, self.bits, self.group_size)

    def packed(self, stack: mx.array) -> list[mx.array]:
        return list(mx.quantize(stack, group_size=self.group_size, bits=self.bits))

    def unpacked(self, parts: Sequence[mx.array]) -> mx.array:
        packed, scales, biases = parts
        return mx.dequantize(packed, scales, biases, self.group_size, self.bits)


class BatchedQuantized(BatchedAttention):
    """Six buffers: packed keys, their scales and biases, and so for values.

    mlx-lm's attention tells by the attribute `bits` that it is given such.
    """

    def __init__(self, slots: SlotTable, bits: int, group_size: int) -> None:
        super().__init__(slots)
        self.bits = bits
        self.group_size = group_size
        self.form = bits, group_size

    def _encoded(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        return [
            part
            for array in (keys, values)
            for part in mx.quantize(array, group_size=self.group_size, bits=self.bits)
        ]

    def _offered(self, parts: list[mx.array]) -> Any:
        return tuple(parts[:3]), tuple(parts[3:])

    def _decoded(self, parts: list[mx.array]) -> tuple[mx.array, mx.array]:
        keys, values = (
            mx.dequantize(packed, scales, biases, self.group_size, self.bits)
            for packed, scales, biases in (parts[:3], parts[3:])
        )
        return keys, values

"""Full attention whose keys and values are kept in few bits once their prompt is computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from pippin.engines.language.kv_cache.kinds.base import TokenArray
from pippin.engines.language.kv_cache.kinds.keys_and_values import BatchedAttention, KeysAndValuesKind
from pippin.engines.language.kv_cache.slots import SlotTable


@dataclass(frozen=True, kw_only=True)
class QuantizedKind(KeysAndValuesKind):
    """Made of `AttentionKind.quantized`. Prompts have mlx-lm's `KVCache` beside their slot, and are quantised when they
    are stored there; so are blocks of the prefix cache."""

    packed_arrays = 3

    bits: int
    group_size: int

    def slot_bytes(self, capacity: int, slack: int) -> int:
        both = (self.keys, self.values)
        return sum(_token_bytes(array, self.bits, self.group_size) for array in both) * capacity

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


@dataclass(frozen=True, kw_only=True)
class TwoFormsKind(KeysAndValuesKind):
    """Keys and values in different numbers of bits, for which there is no kernel: the attention of each layer gets them
    dequantised, which costs memory for one layer at a time. The prefix cache keeps them as they were computed."""

    key_bits: int
    value_bits: int
    group_size: int

    def slot_bytes(self, capacity: int, slack: int) -> int:
        forms = ((self.keys, self.key_bits), (self.values, self.value_bits))
        return sum(_token_bytes(array, bits, self.group_size) for array, bits in forms) * capacity

    def batched(self, slots: SlotTable) -> "BatchedTwoForms":
        return BatchedTwoForms(slots, (self.key_bits, self.value_bits), self.group_size)


class BatchedTwoForms(BatchedAttention):
    """The six buffers of `BatchedQuantized`. Without its attribute `bits`: the model is given keys and values."""

    def __init__(self, slots: SlotTable, both_bits: tuple[int, int], group: int) -> None:
        super().__init__(slots)
        self._both_bits = both_bits
        self._group = group
        self.form = both_bits[0], group

    def _encoded(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        return [
            part
            for array, bits in zip((keys, values), self._both_bits, strict=True)
            for part in mx.quantize(array, group_size=self._group, bits=bits)
        ]

    def _offered(self, parts: list[mx.array]) -> Any:
        return self._decoded(parts)

    def _decoded(self, parts: list[mx.array]) -> tuple[mx.array, mx.array]:
        keys, values = (
            mx.dequantize(packed, scales, biases, self._group, bits)
            for (packed, scales, biases), bits in zip((parts[:3], parts[3:]), self._both_bits, strict=True)
        )
        return keys, values


def kind_of(plain: KeysAndValuesKind, key_bits: int, value_bits: int, group_size: int) -> KeysAndValuesKind:
    """The kind that keeps what `plain` does in so many bits."""
    if key_bits == value_bits:
        return QuantizedKind(keys=plain.keys, values=plain.values, bits=key_bits, group_size=group_size)
    return TwoFormsKind(
        keys=plain.keys,
        values=plain.values,
        key_bits=key_bits,
        value_bits=value_bits,
        group_size=group_size,
    )


def _token_bytes(array: TokenArray, bits: int, group_size: int) -> int:
    """A group has a scale and a bias beside its bits."""
    values = array.heads * array.size
    return values * bits // 8 + 2 * (values // group_size) * array.dtype.size

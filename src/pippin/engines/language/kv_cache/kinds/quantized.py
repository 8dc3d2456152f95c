"""Keys and values of every token in few bits, as a batch keeps them."""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from pippin.engines.language.kv_cache.kinds.base import TokenArray
from pippin.engines.language.kv_cache.kinds.keys_and_values import BatchedAttention
from pippin.engines.language.kv_cache.slots import SlotTable


class BatchedQuantized(BatchedAttention):
    """Six buffers: packed keys, their scales and biases, and so for values.

    mlx-lm's attention tells by the attribute `bits` that it is given such. It computes with one number of bits: where
    keys and values have different ones, each layer is given them dequantised, which costs memory for one layer at a
    time.
    """

    def __init__(self, slots: SlotTable, key_bits: int, value_bits: int, group_size: int) -> None:
        super().__init__(slots)
        self.form = (key_bits, value_bits, group_size)
        if key_bits == value_bits:
            self.bits, self.group_size = key_bits, group_size

    def _encoded(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        *both, group_size = self.form
        return [
            part
            for array, bits in zip((keys, values), both, strict=True)
            for part in mx.quantize(array, group_size=group_size, bits=bits)
        ]

    def _offered(self, parts: list[mx.array]) -> Any:
        return (tuple(parts[:3]), tuple(parts[3:])) if hasattr(self, "bits") else self._decoded(parts)

    def _decoded(self, parts: list[mx.array]) -> tuple[mx.array, mx.array]:
        *both, group_size = self.form
        keys, values = (
            mx.dequantize(packed, scales, biases, group_size, bits)
            for (packed, scales, biases), bits in zip((parts[:3], parts[3:]), both, strict=True)
        )
        return keys, values


class RoundedCache(KVCache):  # type: ignore[misc]
    """mlx-lm's cache of one sequence, whose keys and values are rounded to few bits as they come."""

    def __init__(self, computed: KVCache, bits: tuple[int, int], group_size: int) -> None:
        super().__init__()
        self._forms = [(group_size, each) for each in bits]
        self.update_and_fetch(
            *(array[..., : computed.offset, :] for array in (computed.keys, computed.values))
        )

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        both = zip((keys, values), self._forms, strict=True)
        rounded = (mx.dequantize(*mx.quantize(array, *form), *form) for array, form in both)
        found: tuple[mx.array, mx.array] = super().update_and_fetch(*rounded)
        return found


def quantized_bytes(array: TokenArray, bits: int, group_size: int) -> int:
    """Bytes of a token's vectors. A group has a scale and a bias beside its bits."""
    values = array.heads * array.size
    return values * bits // 8 + 2 * (values // group_size) * array.dtype.size

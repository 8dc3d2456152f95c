"""Where keys and values lie: memory of the caller, which the kernels write into."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pippin_kernels.errors import KernelError
from pippin_kernels.structures import CKV

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class KV:
    """Keys and values of a layer, float32 [slots, heads, capacity, head_dim] each, to be written in place."""

    keys: Floats
    values: Floats

    def structure(self) -> CKV:
        """Raises `KernelError` for memory that is not laid out so, or may not be written."""
        return CKV.from_buffer_copy(describe([self]))


def describe(layers: Sequence[KV]) -> NDArray[np.int64]:
    """The library's description of each layer, [layers, 7]; good as long as the arrays are held. Raises `KernelError`
    for memory that is not laid out as a `KV` is, or not alike in all layers."""
    first = layers[0].keys
    found = np.empty((len(layers), 7), np.int64)  # two addresses, four strides, the capacity
    for index, layer in enumerate(layers):
        for place, array in enumerate((layer.keys, layer.values)):
            right = array.ndim == 4 and array.dtype == np.float32 and array.flags.writeable
            if not right or array.shape != first.shape or array.strides[2:] != (array.shape[3] * 4, 4):
                raise KernelError(
                    "Keys and values are float32 [slots, heads, capacity, head_dim] without gaps."
                )
            if array.strides[1] <= 0 or (array.strides[0] <= 0 and array.shape[0] > 1):
                raise KernelError("Heads of keys and values lie one behind the other.")
            found[index, place] = array.__array_interface__["data"][0]
            found[index, 2 + 2 * place : 4 + 2 * place] = array.strides[0] // 4, array.strides[1] // 4
    found[:, 6] = first.shape[2]
    return found

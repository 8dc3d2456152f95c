"""Where keys and values lie: memory of the caller, which the kernels write into."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pippin_kernels.errors import KernelError
from pippin_kernels.matrix import address
from pippin_kernels.structures import CKV

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class KV:
    """Keys and values of a layer, float32 [slots, heads, capacity, head_dim] each, to be written in place."""

    keys: Floats
    values: Floats

    def structure(self) -> CKV:
        """Raises `KernelError` for memory that is not laid out so, or may not be written."""
        for array in (self.keys, self.values):
            right = array.ndim == 4 and array.dtype == np.float32 and array.flags.writeable
            if not right or array.shape != self.keys.shape or array.strides[2:] != (array.shape[3] * 4, 4):
                raise KernelError("Keys and values are float32 [slots, heads, capacity, head_dim], each position whole.")
            if array.strides[0] < 0 or array.strides[1] <= 0:
                raise KernelError("Heads of keys and values lie one behind the other.")
        strides = (stride // 4 for array in (self.keys, self.values) for stride in array.strides[:2])
        return CKV(address(self.keys), address(self.values), *strides, self.keys.shape[2])


class KVTable:
    """Keys and values of all layers, described to the library once for many steps. Holds the arrays."""

    def __init__(self, layers: list[KV]) -> None:
        """Raises `KernelError` for memory that is not laid out as a `KV` is."""
        self.layers = layers
        self.structures = (CKV * len(layers))(*(each.structure() for each in layers))

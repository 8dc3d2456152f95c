"""Where keys and values lie: memory of the caller, which the kernels write into."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pippin_kernels.errors import KernelError
from pippin_kernels.structures import KV_FIELDS, SHARED_FIELDS

Floats = NDArray[np.float32]
Array = NDArray[Any]

KV_BITS = (4, 8)
KV_GROUPS = (32, 64, 128)


@dataclass(frozen=True)
class KV:
    """Keys and values of some sequences in one layer, float32 [sequences, heads, capacity, head_dim] each, to be
    written in place. Position p lies at (p + shift) modulo the capacity.

    All may begin with the same positions, which `shared` has: keys and values float32 [1, heads, positions, head_dim],
    which are only read."""

    keys: Floats
    values: Floats
    shift: int = 0
    shared: tuple[Floats, Floats] | None = None

    @property
    def sequences(self) -> int:
        return self.keys.shape[0]

    @property
    def heads(self) -> tuple[int, int]:
        """How many, and of which size."""
        return self.keys.shape[1], self.keys.shape[3]

    def layout(self) -> "Layout":
        """Raises `KernelError` for memory that is not laid out so, or may not be written."""
        heads = _strides((self.keys, self.values))
        if not self.keys.flags.writeable or not self.values.flags.writeable:
            raise KernelError("Keys and values are written in place.")
        capacity = self.keys.shape[2]
        rest = (*heads, capacity, self.shift % max(capacity, 1), 0, 0)
        if self.shared is None:
            return _layout((self.keys, self.values), rest)
        own, theirs = self.keys.shape, self.shared[0].shape
        if (theirs[0], theirs[1], theirs[3]) != (1, own[1], own[3]):
            raise KernelError("What sequences share has as many heads as they have, of the same size.")
        strides = _strides(self.shared)
        return _layout((self.keys, self.values), rest, (*map(_address, self.shared), *strides, theirs[2]))


@dataclass(frozen=True)
class PackedKV:
    """As `KV`, quantised as MLX does it: of keys and of values the packed words, uint32 [sequences, heads, capacity,
    words], and scales and biases, float32 [sequences, heads, capacity, groups]."""

    parts: tuple[Array, Array, Array, Array, Array, Array]
    bits: int
    group: int

    @property
    def sequences(self) -> int:
        return self.parts[0].shape[0]

    @property
    def heads(self) -> tuple[int, int]:
        return self.parts[0].shape[1], self.parts[0].shape[3] * 32 // self.bits

    def layout(self) -> "Layout":
        """As `KV.layout`."""
        if self.bits not in KV_BITS or self.group not in KV_GROUPS:
            raise KernelError("Keys and values are packed in 4 or 8 bits, in groups of 32, 64 or 128.")
        words, scales, *_ = self.parts
        groups = self.heads[1] // self.group
        for index, array in enumerate(self.parts):
            like, dtype = (words, np.uint32) if index % 3 == 0 else (scales, np.float32)
            if array.shape != like.shape or array.dtype != dtype or not array.flags.writeable:
                raise KernelError(
                    "Packed keys and values are uint32 words with scales and biases of float32."
                )
            # The sequences of a slice lie apart; what one has lies without gaps.
            if not array[:1].flags.c_contiguous:
                raise KernelError("Packed keys and values of a sequence lie without gaps.")
        if scales.shape != (*words.shape[:3], groups) or groups * self.group != self.heads[1]:
            raise KernelError("Packed keys and values have a scale for each group.")
        head = words.shape[2] * words.shape[3]
        keys, key_scales, key_biases, values, value_scales, value_biases = self.parts
        ordered = [keys, values, key_scales, key_biases, value_scales, value_biases]
        return _layout(ordered, (head, head, words.shape[2], 0, self.bits, self.group))


AnyKV = KV | PackedKV


Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""What the library is told of the first sequence, and by how much that grows from one to the next."""


def _layout(
    arrays: Sequence[Array], rest: tuple[int, ...], shared: tuple[int, ...] = (0,) * SHARED_FIELDS
) -> Layout:
    missing = (0,) * (KV_FIELDS - SHARED_FIELDS - len(rest) - len(arrays))
    growth = (*(array.strides[0] for array in arrays), *missing)
    return (*map(_address, arrays), *missing, *rest, *shared), (*growth, *(0,) * (KV_FIELDS - len(growth)))


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _strides(pair: tuple[Floats, Floats]) -> tuple[int, ...]:
    """By how many numbers the heads of keys and of values lie apart."""
    for array in pair:
        right = array.ndim == 4 and array.dtype == np.float32 and array.shape == pair[0].shape
        if not right or array.strides[2:] != (array.shape[3] * 4, 4):
            raise KernelError("Keys and values are float32 [slots, heads, capacity, head_dim] without gaps.")
        if array.strides[1] <= 0 or (array.strides[0] <= 0 and array.shape[0] > 1):
            raise KernelError("Heads of keys and values lie one behind the other.")
    return tuple(array.strides[1] // 4 for array in pair)


class Places:
    """Where sequences lie in each layer, as the library is told of it: `table` [layers, sequences, fields].

    The arrays are not held, so that it can be kept from one step to the next while their owner may do with them what
    it likes. It is good as long as they lie where they were."""

    def __init__(self, layers: Sequence[Sequence[AnyKV]]) -> None:
        """Each layer lists parts, which have the same number of sequences in all. Raises `KernelError`."""
        self.layers = len(layers)
        sequences = {sum(part.sequences for part in layer) for layer in layers}
        heads = {part.heads for layer in layers for part in layer}
        if len(sequences) != 1 or len(heads) != 1:
            raise KernelError("Layers have keys and values of as many sequences and heads.")
        (self.sequences,) = sequences
        (self.heads,) = heads
        self.table = _describe([part for layer in layers for part in layer])


def _describe(parts: Sequence[AnyKV]) -> NDArray[np.int64]:
    """The library's description of each sequence of all parts, [sequences, fields]. Raises `KernelError`."""
    first, growth = np.array([part.layout() for part in parts], np.int64).swapaxes(0, 1)
    counts = [part.sequences for part in parts]
    places = np.concatenate([np.arange(count) for count in counts])
    found: NDArray[np.int64] = np.repeat(first, counts, axis=0)
    return found + np.repeat(growth, counts, axis=0) * places[:, None]

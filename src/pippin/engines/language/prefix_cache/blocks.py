"""Row caches cut into blocks and put together again: what the prefix tree holds.

Layers of full attention are cut along their tokens; their arrays of one shape are stacked, so that a block is a few
arrays and not two for each layer. Layers that cannot be cut are kept whole, as they stand after a block.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache
from numpy.typing import NDArray

from pippin.engines.language.kv_cache.attention import BatchShape
from pippin.engines.language.kv_cache.kinds import RowCache, leaves
from pippin.engines.language.kv_cache.slots import allot, stand_at

Block = tuple[mx.array, ...]
"""[arrays of this shape, heads, tokens, dim], one for each shape."""

Snapshot = tuple[tuple[mx.array | None, ...], ...]
"""The state of each layer that cannot be cut."""


class BlockLayout:
    """How a model's rows are cut, learnt from a row that has run."""

    def __init__(self, probe: RowCache, shape: BatchShape, *, writes_in_place: bool = False) -> None:
        """`writes_in_place`: the host can write into arrays."""
        self._shape = shape
        self._writes_in_place = writes_in_place
        groups: dict[tuple[int, int, mx.Dtype], list[int]] = {}
        for index, array in enumerate(_keys_and_values(probe)):
            groups.setdefault((array.shape[1], array.shape[3], array.dtype), []).append(index)
        self._groups = list(groups.values())
        self.has_blocks = bool(self._groups)
        self.has_state = any(type(layer) is ArraysCache for layer in leaves(probe))
        self.has_snapshots = any(type(layer) is not KVCache for layer in leaves(probe))

    def cut(self, cache: RowCache, start: int, stop: int, size: int) -> list[Block]:
        """Copies of positions `start` to `stop`, both multiples of `size`, on their way on the device."""
        if start >= stop:
            return []
        arrays = _keys_and_values(cache)
        stacks = [mx.stack([arrays[index][0, :, start:stop] for index in group]) for group in self._groups]
        stacks = [part for stack in stacks for part in self._packed(stack)]
        blocks = [
            tuple(mx.contiguous(stack[:, :, place : place + size]) for stack in stacks)
            for place in range(0, stop - start, size)
        ]
        # At once: a view that waits would make the next write to the row copy all of it.
        mx.async_eval(*(array for block in blocks for array in block))  # type: ignore[no-untyped-call]
        return blocks

    def _packed(self, stack: mx.array) -> list[mx.array]:
        """As it is kept: in as few bits as the batch has it."""
        if self._shape.kv_bits is None:
            return [stack]
        return list(mx.quantize(stack, group_size=self._shape.kv_group_size, bits=self._shape.kv_bits))

    def snapshot(self, cache: RowCache) -> Snapshot:
        """The state of the layers that cannot be cut, copied, on its way on the device."""
        snapshot = tuple(_state(layer) for layer in leaves(cache) if not isinstance(layer, KVCache))
        mx.async_eval(*snapshot_arrays(snapshot))  # type: ignore[no-untyped-call]
        return snapshot

    def restore(
        self, cache: RowCache, blocks: Sequence[Block], snapshot: Snapshot | None, tokens: int
    ) -> None:
        """Fill a row's new cache with what was kept of `tokens` tokens."""
        self._fill([layer for layer in leaves(cache) if isinstance(layer, KVCache)], blocks, tokens)
        states = iter(snapshot or ())
        for layer in leaves(cache):
            if not isinstance(layer, KVCache):
                _set_state(layer, next(states), tokens)

    def _fill(self, layers: Sequence[KVCache], blocks: Sequence[Block], tokens: int) -> None:
        """Keys and values of each layer, put together from the blocks.

        The host gathers each right where it belongs. By MLX all layers are put together first: a copy for each block
        and layer, thousands of them, takes twice as long as these two.
        """
        stacks = list(zip(*blocks, strict=True))
        if self._writes_in_place and self._shape.kv_bits is None:
            self._gather(layers, stacks, tokens)
            return
        joined = [mx.concatenate(list(parts), axis=2) for parts in stacks]
        found: dict[int, mx.array] = {}
        for number, group in enumerate(self._groups):
            for place, index in enumerate(group):
                found[index] = self._unpacked(joined, number, place)
        for index, layer in enumerate(layers):
            layer.update_and_fetch(found[2 * index], found[2 * index + 1])

    def _gather(self, layers: Sequence[KVCache], stacks: Sequence[Sequence[mx.array]], tokens: int) -> None:
        """As `_fill`, by the host."""
        grouped = list(zip(stacks, self._groups, strict=True))
        like = {index: parts[0] for parts, group in grouped for index in group}
        for number, layer in enumerate(layers):
            allot(layer, like[2 * number], like[2 * number + 1])
        places = [array for layer in layers for array in (layer.keys, layer.values)]
        mx.eval(places)
        mx.synchronize()  # what lay in the slot before may be on its way into the tree
        for parts, group in grouped:
            sources = [_memory(part) for part in parts]
            for number, index in enumerate(group):
                own = _memory(places[index])[0, :, :tokens]
                np.concatenate([source[number] for source in sources], axis=1, out=own)
        for layer in layers:
            stand_at(layer, tokens)

    def _unpacked(self, stacks: Sequence[mx.array], number: int, place: int) -> mx.array:
        """One array [1, heads, tokens, dim] out of the stacks of all."""
        own = slice(place, place + 1)
        if self._shape.kv_bits is None:
            return stacks[number][own]
        packed, scales, biases = (stack[own] for stack in stacks[3 * number : 3 * number + 3])
        return mx.dequantize(packed, scales, biases, self._shape.kv_group_size, self._shape.kv_bits)


def _memory(array: mx.array) -> NDArray[Any]:
    """What an array lies in, seen as numbers of a kind that numpy has."""
    return np.asarray(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def bytes_of(arrays: Sequence[mx.array]) -> int:
    return sum(array.nbytes for array in arrays)


def snapshot_arrays(snapshot: Snapshot) -> list[mx.array]:
    return [array for state in snapshot for array in state if array is not None]


def _keys_and_values(cache: RowCache) -> list[mx.array]:
    found = []
    for layer in leaves(cache):
        if isinstance(layer, KVCache):
            found += [layer.keys, layer.values]
    return found


def _state(layer: Any) -> tuple[mx.array | None, ...]:
    if type(layer) is RotatingKVCache:
        if layer.keys is None:
            return (None, None)
        ordered = (layer._temporal_order(layer.keys), layer._temporal_order(layer.values))
        kept = min(layer.offset, layer.max_size)
        return tuple(mx.contiguous(array[:, :, array.shape[2] - kept :]) for array in ordered)
    return tuple(None if array is None else mx.contiguous(array) for array in layer.cache)


def _set_state(layer: Any, state: tuple[mx.array | None, ...], tokens: int) -> None:
    if type(layer) is RotatingKVCache:
        layer.keys, layer.values = (None if array is None else array[:] for array in state)
        layer.offset, layer._idx = tokens, 0 if layer.keys is None else layer.keys.shape[2]
    else:
        layer.cache = [None if array is None else array[:] for array in state]

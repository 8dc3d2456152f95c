"""Row caches cut into blocks and put together again: what the prefix tree holds.

Layers of full attention are cut along their tokens; their arrays of one shape are stacked, so that a block is a few
arrays and not two for each layer. Layers that cannot be cut are kept whole, as they stand after a block.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache
from numpy.typing import NDArray

from pippin.engines.language.arenas import BatchShape
from pippin.engines.language.row_caches import RowCache, leaves

Block = tuple[mx.array, ...]
"""[arrays of this shape, heads, tokens, dim], one for each shape."""

Snapshot = tuple[tuple[mx.array | None, ...], ...]
"""The state of each layer that cannot be cut."""


class BlockLayout:
    """How a model's rows are cut, learnt from a row that has run."""

    def __init__(
        self,
        probe: RowCache,
        new_row: Callable[[], RowCache],
        shape: BatchShape,
        *,
        writes_in_place: bool = False,
    ) -> None:
        """`writes_in_place`: the host can write into arrays."""
        self._new_row = new_row
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
        snapshot = tuple(_state(layer) for layer in leaves(cache) if type(layer) is not KVCache)
        mx.async_eval(*snapshot_arrays(snapshot))  # type: ignore[no-untyped-call]
        return snapshot

    def restore(self, blocks: Sequence[Block], snapshot: Snapshot | None, tokens: int, room: int) -> RowCache:
        """A new row's cache, filled with what was kept of `tokens` tokens, which will come to hold `room` more."""
        cache = self._new_row()
        arrays = self._arrays(blocks, room)
        cut = [layer for layer in leaves(cache) if type(layer) is KVCache]
        for index, layer in enumerate(cut):
            layer.keys, layer.values, layer.offset = arrays[2 * index], arrays[2 * index + 1], tokens
        states = iter(snapshot or ())
        for layer in leaves(cache):
            if type(layer) is not KVCache:
                _set_state(layer, next(states), tokens)
        return cache

    def _arrays(self, blocks: Sequence[Block], room: int) -> dict[int, mx.array]:
        """Keys and values of each layer, put together from the blocks and allotted with `room`.

        By MLX all layers are put together first: a copy for each block and layer, thousands of them, takes twice as
        long as these two. Then each gets an array of its own, which can be written into in place.
        """
        found: dict[int, mx.array] = {}
        if self._writes_in_place and self._shape.kv_bits is None:
            for parts, group in zip(zip(*blocks, strict=True), self._groups, strict=True):
                found.update(zip(group, _gathered(parts, room), strict=True))
            return found
        empty = tuple(_zeros(part, room) for part in blocks[0])
        if self._shape.kv_bits is not None:
            stacks = _joined([*blocks, empty])
            for number, group in enumerate(self._groups):
                parts = stacks[3 * number : 3 * number + 3]
                found.update({index: self._unpacked(parts, place) for place, index in enumerate(group)})
            return found
        for stack, rest, group in zip(_joined(blocks), empty, self._groups, strict=True):
            for place, index in enumerate(group):
                own = slice(place, place + 1)
                found[index] = mx.concatenate([stack[own], rest[own]], axis=2)
        return found

    def _unpacked(self, parts: Sequence[mx.array], place: int) -> mx.array:
        """One array out of a stack that is kept in few bits."""
        packed, scales, biases = (part[place : place + 1] for part in parts)
        return mx.dequantize(packed, scales, biases, self._shape.kv_group_size, self._shape.kv_bits)


def _joined(blocks: Sequence[Block]) -> Block:
    """One block, of all their tokens."""
    return tuple(mx.concatenate(list(parts), axis=2) for parts in zip(*blocks, strict=True))


def _gathered(parts: Sequence[mx.array], room: int) -> list[mx.array]:
    """The arrays of a stack that lies in parts, each [1, heads, tokens + room, dim], written by the host."""
    count, heads, _, dim = parts[0].shape
    tokens = sum(part.shape[2] for part in parts)
    arrays = [mx.zeros((1, heads, tokens + room, dim), parts[0].dtype) for _ in range(count)]
    mx.eval(arrays)
    sources = [_memory(part) for part in parts]
    for place, array in enumerate(arrays):
        np.concatenate([source[place] for source in sources], axis=1, out=_memory(array)[0, :, :tokens])
    return arrays


def _memory(array: mx.array) -> NDArray[Any]:
    """What an array lies in, seen as numbers of a kind that numpy has."""
    return np.asarray(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def _zeros(part: mx.array, tokens: int) -> mx.array:
    """As an array of a block, but of `tokens` tokens; takes no memory."""
    return mx.broadcast_to(mx.zeros((), part.dtype), (*part.shape[:2], tokens, part.shape[3]))


def bytes_of(arrays: Sequence[mx.array]) -> int:
    return sum(array.nbytes for array in arrays)


def snapshot_arrays(snapshot: Snapshot) -> list[mx.array]:
    return [array for state in snapshot for array in state if array is not None]


def _keys_and_values(cache: RowCache) -> list[mx.array]:
    found = []
    for layer in leaves(cache):
        if type(layer) is KVCache:
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

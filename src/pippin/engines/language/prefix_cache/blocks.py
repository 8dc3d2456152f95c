"""Prompts' caches cut into blocks and put together again: what the prefix tree holds.

Arrays with something for each token are cut along their tokens; those of one shape are stacked, so that a block is a
few arrays and not two for each layer. What cannot be cut is kept whole, as it stands after a block. The kinds of cache
say which is which.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from pippin.engines.language.kv_cache.kinds import base as kinds
from pippin.engines.language.kv_cache.kinds.base import CacheKind
from pippin.engines.language.kv_cache.layout import CacheLayout, leaves
from pippin.engines.language.kv_cache.slots import PromptCache

Block = tuple[mx.array, ...]
"""[arrays of this shape, heads, tokens, size], one for each shape; several where a kind packs them."""

Snapshot = tuple[kinds.Snapshot, ...]
"""The state of each layer that cannot be cut."""

HostCopy = Callable[[Sequence[Sequence[mx.array]], Sequence[Sequence[mx.array]]], None]
"""Given stacks of one shape in the order of their tokens, for each shape, and for each of these the arrays
[1, heads, capacity, size] into which the host writes the stacks' members from their first token on."""


@dataclass(frozen=True)
class _Stack:
    """Arrays of one shape, and the layer that each belongs to, with its number among those that are cut there."""

    kind: CacheKind
    members: list[tuple[int, int]]


class BlockLayout:
    """How the sequences of a model are cut."""

    def __init__(self, layout: CacheLayout, *, host_copy: HostCopy | None = None) -> None:
        """`host_copy`: how the host writes blocks into arrays, where it can."""
        self._kinds = layout.kinds
        stacks: dict[object, _Stack] = {}
        for layer, kind in enumerate(self._kinds):
            for number, array in enumerate(kind.token_arrays):
                stacks.setdefault((kind, array), _Stack(kind, [])).members.append((layer, number))
        self._stacks = list(stacks.values())
        self._host_copy = host_copy if all(stack.kind.host_fills for stack in self._stacks) else None
        self.has_blocks = bool(self._stacks)
        self.has_state = any(not kind.looks_back for kind in self._kinds)
        self.has_snapshots = any(kind.snapshots for kind in self._kinds)

    def cut(self, cache: PromptCache, start: int, stop: int, size: int) -> list[Block]:
        """Copies of positions `start` to `stop`, both multiples of `size`, on their way on the device."""
        if start >= stop:
            return []
        arrays = [kind.cut(leaf) for kind, leaf in zip(self._kinds, leaves(cache), strict=True)]
        parts = []
        for stack in self._stacks:
            whole = mx.stack([arrays[layer][number][0, :, start:stop] for layer, number in stack.members])
            parts += stack.kind.packed(whole)
        blocks = [
            tuple(mx.contiguous(part[:, :, place : place + size]) for part in parts)
            for place in range(0, stop - start, size)
        ]
        # At once: a view that waits would make the next write to the sequence copy all of it.
        mx.async_eval(*(array for block in blocks for array in block))  # type: ignore[no-untyped-call]
        return blocks

    def snapshot(self, cache: PromptCache) -> Snapshot:
        """The state of the layers that cannot be cut, copied, on its way on the device."""
        layers = zip(self._kinds, leaves(cache), strict=True)
        snapshot = tuple(kind.snapshot(leaf) for kind, leaf in layers if kind.snapshots)
        mx.async_eval(*snapshot_arrays(snapshot))  # type: ignore[no-untyped-call]
        return snapshot

    def restore(
        self, cache: PromptCache, blocks: Sequence[Block], snapshot: Snapshot | None, tokens: int
    ) -> None:
        """Fill a sequence's new cache with what was kept of `tokens` tokens."""
        layers = list(leaves(cache))
        parts = list(zip(*blocks, strict=True))
        if self._host_copy is None:
            self._fill(layers, parts)
        else:
            self._fill_by_host(self._host_copy, layers, parts, tokens)
        states = iter(snapshot or ())
        for kind, leaf in zip(self._kinds, layers, strict=True):
            if kind.snapshots:
                kind.restore(leaf, next(states), tokens)

    def _fill(self, layers: Sequence[object], parts: Sequence[Sequence[mx.array]]) -> None:
        """Keys and values of each layer, put together from the blocks by the device.

        All layers are put together first: a copy for each block and layer, thousands of them, takes twice as long as
        these two.
        """
        joined = iter([mx.concatenate(list(pieces), axis=2) for pieces in parts])
        found: dict[tuple[int, int], mx.array] = {}
        for stack in self._stacks:
            own = [next(joined) for _ in range(stack.kind.packed_arrays)]
            for place, member in enumerate(stack.members):
                found[member] = stack.kind.unpacked([part[place : place + 1] for part in own])
        for layer, (kind, leaf) in enumerate(zip(self._kinds, layers, strict=True)):
            if kind.token_arrays:
                kind.fill(leaf, [found[layer, number] for number in range(len(kind.token_arrays))])

    def _fill_by_host(
        self,
        host_copy: HostCopy,
        layers: Sequence[object],
        parts: Sequence[Sequence[mx.array]],
        tokens: int,
    ) -> None:
        """As `_fill`, by the host, which writes each block right where it belongs."""
        cut = {
            layer: (kind, leaf)
            for layer, (kind, leaf) in enumerate(zip(self._kinds, layers, strict=True))
            if kind.token_arrays
        }
        opened = {layer: kind.open_to_host(leaf) for layer, (kind, leaf) in cut.items()}
        targets = [[opened[layer][number] for layer, number in stack.members] for stack in self._stacks]
        host_copy(parts, targets)
        for kind, leaf in cut.values():
            kind.filled_by_host(leaf, tokens)


def bytes_of(arrays: Sequence[mx.array]) -> int:
    return sum(array.nbytes for array in arrays)


def snapshot_arrays(snapshot: Snapshot) -> list[mx.array]:
    return [array for state in snapshot for array in state if array is not None]

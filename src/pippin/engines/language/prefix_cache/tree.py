"""The tree of computed prompts over blocks of tokens, bounded in bytes.

A node is one block after its parent's. It holds the keys and values of the layers that can be cut there (`block`) and,
at some nodes, the state after it of the layers that cannot (`snapshot`: sliding windows, recurrent state). Least
recently used leaves are evicted first, so the rest can always be read from the root.

`BlockLayout` cuts prompts' caches into blocks and joins them again. Arrays with an entry for each token are cut along
their tokens; arrays of one shape are stacked, so that a block is a few arrays and not two for each layer. State that
cannot be cut is kept whole, as it is after a block. The kinds of cache say which is which. The tree itself touches no
arrays.
"""

import hashlib
from array import array
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from pippin.engines.language.kv_cache.kinds import base as kinds
from pippin.engines.language.kv_cache.kinds.base import CacheKind
from pippin.engines.language.kv_cache.layout import CacheLayout, leaves
from pippin.engines.language.kv_cache.slots import PromptCache

PINNED_SHARE = 0.5  # the most of the limit that pins may hold

PIECE = 8
"""Tokens: a block that begins like a prompt counts as known in multiples of this. Single tokens would not do: whoever
sees how much of a prompt was known could guess what others wrote, token by token."""


@dataclass(eq=False)
class Node:
    """One block of tokens of a key, and what is kept for it."""

    parent: "Node | None"
    tokens: tuple[int, ...]
    digest: bytes  # of the key and all tokens up to here
    depth: int  # blocks from the root, this one included
    block: Any = None
    block_bytes: int = 0
    snapshot: Any = None
    snapshot_bytes: int = 0
    pinned: bool = False
    children: "dict[tuple[int, ...], Node]" = field(default_factory=dict)
    in_order: list[tuple[int, ...]] = field(default_factory=list)  # the tokens of all children, sorted

    @property
    def bytes(self) -> int:
        return self.block_bytes + self.snapshot_bytes


class PrefixTree:
    """Nodes of `block_tokens` tokens each; `limit` bytes and `leaf_limit` leaves (conversations) at most."""

    def __init__(self, block_tokens: int, limit: int, *, leaf_limit: int | None = None) -> None:
        self.block_tokens = block_tokens
        self.limit = limit
        self.bytes = 0
        self.evictions = 0
        self._leaf_limit = leaf_limit
        self._roots: dict[bytes, Node] = {}  # by the digest of their key; only roots with children
        self._nodes: OrderedDict[Node, None] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        """The nodes, the least recently used first."""
        return iter(self._nodes)

    @property
    def roots(self) -> Collection[Node]:
        """A node for each key of which something is held, before the first block."""
        return self._roots.values()

    def root(self, key: bytes) -> Node:
        """The node before the first block of this key; it holds nothing."""
        digest = hashlib.blake2b(key, digest_size=20).digest()
        # A new root is kept only once it has a child: callers can choose any number of salts, and so of keys.
        return self._roots.get(digest) or Node(None, (), digest, 0)

    def digest_after(self, digest: bytes, tokens: tuple[int, ...]) -> bytes:
        """The digest of the node that holds `tokens` after the node with this `digest`."""
        return hashlib.blake2b(digest + array("q", tokens).tobytes(), digest_size=20).digest()

    def path(self, key: bytes, tokens: Sequence[int]) -> list[Node]:
        """The nodes of the longest known prefix, from the first block on. Marks them as just used."""
        node, found, size = self.root(key), [], self.block_tokens
        for start in range(0, len(tokens) - size + 1, size):
            child = node.children.get(tuple(tokens[start : start + size]))
            if child is None:
                break
            found.append(child)
            node = child
        self.touch(found)
        return found

    def begun(self, key: bytes, path: list[Node], tokens: Sequence[int]) -> tuple[Node, int] | None:
        """The block after `path` that shares the longest beginning with `tokens` (at most a block), and the length of
        that beginning in whole pieces; None if there is none. Marks the block as just used."""
        node, wanted = path[-1] if path else self.root(key), tuple(tokens)
        place = bisect_left(node.in_order, wanted)
        # In sorted order, the neighbours of a text share the longest beginning with it.
        beside = node.in_order[max(place - 1, 0) : place + 1]
        count, found = max(((shared_length(each, wanted), each) for each in beside), default=(0, ()))
        count -= count % PIECE
        if not count:
            return None
        child = node.children[found]
        self.touch([child])
        return child, count

    def add(
        self, path: list[Node], key: bytes, tokens: tuple[int, ...], block: Any, size: int
    ) -> Node | None:
        """Add a block of `size` bytes after the last of `path`, and append it to `path`; None if there is no room for
        it.

        Call `touch` on the path when all its blocks are added.
        """
        parent = path[-1] if path else self.root(key)
        if parent.depth and parent not in self._nodes:
            return None  # dropped in the meantime
        spared = set(path)
        if self.bytes + size > self.limit and not self._make_room(size, spared):
            return None
        node = Node(parent, tokens, self.digest_after(parent.digest, tokens), parent.depth + 1, block, size)
        parent.children[tokens] = node
        insort(parent.in_order, tokens)
        if not parent.depth:
            self._roots[parent.digest] = parent
        self._nodes[node] = None
        self.bytes += size
        path.append(node)
        if self._leaf_limit is not None:
            self._limit_leaves({*spared, node})
        return node

    def touch(self, path: list[Node]) -> None:
        """Mark these nodes as just used. The deepest of them counts as the oldest and is evicted first."""
        for node in reversed(path):
            if node in self._nodes:
                self._nodes.move_to_end(node)

    def set_snapshot(self, node: Node, snapshot: Any, size: int) -> bool:
        """Keep the state after `node`; False if there is no room for it."""
        if node not in self._nodes or node.snapshot is not None:
            return node in self._nodes
        if not self._make_room(size, ancestors(node)):
            return False
        node.snapshot, node.snapshot_bytes = snapshot, size
        self.bytes += size
        return True

    def drop_snapshot(self, node: Node) -> None:
        """Drop the state after `node`, unless the node is pinned."""
        if node in self._nodes and not node.pinned:
            self.bytes -= node.snapshot_bytes
            node.snapshot, node.snapshot_bytes = None, 0

    def pin(self, node: Node) -> None:
        """Keep this node and all before it, as long as pins stay within their share of the limit."""
        node.pinned = True
        self._limit_pins()

    def _limit_pins(self) -> None:
        """Release the oldest pins while pins hold more than their share."""
        pins = [each for each in self._nodes if each.pinned]
        covered = {each for pinned in pins for each in ancestors(pinned)}
        while pins and sum(each.bytes for each in covered) > self.limit * PINNED_SHARE:
            pins.pop(0).pinned = False
            covered = {each for pinned in pins for each in ancestors(pinned)}

    def resize(self, limit: int) -> None:
        """Hold at most `limit` bytes from now on; evicts what was used least recently."""
        self.limit = limit
        self._limit_pins()
        self._make_room(0, set())

    def clear(self) -> None:
        for node in self._nodes:
            node.parent = None  # a cycle would keep the node until the garbage collector runs
            _empty(node)
        self._roots.clear()
        self._nodes.clear()
        self.bytes = 0

    @property
    def leaves(self) -> int:
        return sum(not node.children for node in self._nodes)

    def _make_room(self, size: int, spared: set[Node]) -> bool:
        if size > self.limit:
            return False
        while self.bytes + size > self.limit:
            node = next((node for node in self._nodes if _may_go(node) and node not in spared), None)
            if node is None:
                return False
            self._shrink(node)
        return True

    def _shrink(self, node: Node) -> None:
        """Evict a leaf, or only the snapshot of a node with children."""
        self.evictions += 1
        if node.children:
            self.bytes -= node.snapshot_bytes
            node.snapshot, node.snapshot_bytes = None, 0
            return
        self.bytes -= node.bytes
        _empty(node)
        del self._nodes[node]
        if node.parent is not None:
            del node.parent.children[node.tokens]
            del node.parent.in_order[bisect_left(node.parent.in_order, node.tokens)]
            if not node.parent.depth and not node.parent.children:
                del self._roots[node.parent.digest]

    def _limit_leaves(self, spared: set[Node]) -> None:
        while self._leaf_limit is not None and self.leaves > self._leaf_limit:
            leaf = next(
                (
                    node
                    for node in self._nodes
                    if not node.children and not node.pinned and node not in spared
                ),
                None,
            )
            if leaf is None:
                return
            parent: Node | None = leaf
            while (
                leaf is not None
                and not leaf.children
                and not leaf.pinned
                and leaf not in spared
                and leaf.depth
            ):
                parent = leaf.parent
                self._shrink(leaf)
                leaf = parent


def shared_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common prefix."""
    low, high = 0, min(len(first), len(second))
    # Slices are compared in C, so a binary search is faster than a loop over tokens.
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _may_go(node: Node) -> bool:
    return not node.pinned and (not node.children or node.snapshot is not None)


def _empty(node: Node) -> None:
    """Drop the arrays of an evicted node, which are no longer counted: others may still hold the node."""
    node.block, node.block_bytes, node.snapshot, node.snapshot_bytes = None, 0, None, 0


def ancestors(node: Node) -> set[Node]:
    """The node and all above it, without the root."""
    found: set[Node] = set()
    step: Node | None = node
    while step is not None and step.parent is not None:
        found.add(step)
        step = step.parent
    return found


Block = tuple[mx.array, ...]
"""[arrays of this shape, heads, tokens, size], one for each shape; several if a kind packs them."""

Snapshot = tuple[kinds.Snapshot, ...]
"""The state of each layer that cannot be cut."""


@dataclass(frozen=True)
class Stack:
    """Arrays of one shape: for each its layer, and its number among the layer's arrays that are cut."""

    kind: CacheKind
    members: list[tuple[int, int]]


Fill = Callable[[Sequence[Stack], Sequence[Any], Sequence[Sequence[mx.array]], int], None]
"""Gives the caches of all layers what was cut of their first so many tokens. For each array of a block there are its
pieces, in the order of their tokens; a packed stack has three."""


def fill_joined(
    stacks: Sequence[Stack], layers: Sequence[Any], parts: Sequence[Sequence[mx.array]], tokens: int
) -> None:
    """Let the device join the blocks into keys and values of each layer.

    Whole stacks are joined before layers are taken out of them: thousands of copies, one for each block and layer,
    would take twice as long.
    """
    joined = iter([mx.concatenate(list(pieces), axis=2) for pieces in parts])
    found: dict[int, list[mx.array]] = {}
    kinds: dict[int, CacheKind] = {}
    for stack in stacks:
        whole = _unpacked(joined, stack.kind.block_form)
        # Of one layer, members come in the order of their numbers.
        for place, (layer, _) in enumerate(stack.members):
            kinds[layer] = stack.kind
            found.setdefault(layer, []).append(whole[place : place + 1])
    for layer, arrays in found.items():
        kinds[layer].fill(layers[layer], arrays)


def _packed(stack: mx.array, form: tuple[int, int] | None) -> list[mx.array]:
    """A stack [arrays, heads, tokens, size] as blocks keep it: packed words, scales and biases, or as it is."""
    if form is None:
        return [stack]
    bits, group_size = form
    return list(mx.quantize(stack, group_size=group_size, bits=bits))


def _unpacked(parts: Iterator[mx.array], form: tuple[int, int] | None) -> mx.array:
    """The stack again, from the next of these parts."""
    if form is None:
        return next(parts)
    bits, group_size = form
    return mx.dequantize(next(parts), next(parts), next(parts), group_size, bits)


class BlockLayout:
    """Cuts the caches of a model's sequences into blocks, and joins them again."""

    def __init__(self, layout: CacheLayout, fill: Fill = fill_joined, most_arrays: int | None = None) -> None:
        """`most_arrays`: a device may have room for so many only."""
        self._most_arrays = most_arrays
        self._kinds = layout.kinds
        stacks: dict[object, Stack] = {}
        for layer, kind in enumerate(self._kinds):
            for number, shape in enumerate(kind.token_arrays):
                stacks.setdefault((kind, shape), Stack(kind, [])).members.append((layer, number))
        self._stacks = list(stacks.values())
        self._fill = fill
        self.has_blocks = bool(self._stacks)
        self.has_state = any(kind.replays for kind in self._kinds)
        self.has_snapshots = not all(kind.token_arrays for kind in self._kinds)

    def held_bytes(self, arrays: Sequence[mx.array], limit: int) -> int:
        """What these arrays take of a tree's limit: small ones take their share of the arrays that there may be."""
        least = 0 if self._most_arrays is None else limit // self._most_arrays
        return sum(max(array.nbytes, least) for array in arrays)

    def cut(self, cache: PromptCache, start: int, stop: int, size: int) -> list[Block]:
        """Copies of positions `start` to `stop`, both multiples of `size`, which the device begins to compute."""
        if start >= stop:
            return []
        arrays = [kind.cut(leaf) for kind, leaf in zip(self._kinds, leaves(cache), strict=True)]
        parts = []
        for stack in self._stacks:
            whole = mx.stack([arrays[layer][number][0, :, start:stop] for layer, number in stack.members])
            parts += _packed(whole, stack.kind.block_form)
        blocks = [
            tuple(mx.contiguous(part[:, :, place : place + size]) for part in parts)
            for place in range(0, stop - start, size)
        ]
        # At once: a pending view would make the next write to the sequence copy all of it.
        mx.async_eval(*(array for block in blocks for array in block))  # type: ignore[no-untyped-call]
        return blocks

    def snapshot(self, cache: PromptCache) -> Snapshot:
        """A copy of the state of the layers that cannot be cut, which the device begins to compute."""
        layers = zip(self._kinds, leaves(cache), strict=True)
        snapshot = tuple(kind.snapshot(leaf) for kind, leaf in layers if not kind.token_arrays)
        mx.async_eval(*snapshot_arrays(snapshot))  # type: ignore[no-untyped-call]
        return snapshot

    def restore(
        self, cache: PromptCache, blocks: Sequence[Block], snapshot: Snapshot | None, tokens: int
    ) -> None:
        """Fill a sequence's new cache with what was kept of its first `tokens`, which may end within the last block."""
        layers = list(leaves(cache))
        parts = list(zip(*_up_to(blocks, tokens), strict=True))
        self._fill(self._stacks, layers, parts, tokens)
        states = iter(snapshot or ())
        for kind, leaf in zip(self._kinds, layers, strict=True):
            if not kind.token_arrays:
                kind.restore(leaf, next(states), tokens)


def _up_to(blocks: Sequence[Block], tokens: int) -> list[Block]:
    """The blocks, with the last one cut to `tokens` tokens in all."""
    *whole, last = blocks
    rest = tokens - sum(block[0].shape[2] for block in whole if block)
    return [*whole, tuple(part if part.shape[2] == rest else part[:, :, :rest] for part in last)]


def snapshot_arrays(snapshot: Snapshot) -> list[mx.array]:
    return [array for state in snapshot for array in state if array is not None]

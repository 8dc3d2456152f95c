"""What is remembered of computed prompts: a tree over blocks of tokens, bounded in bytes. No arrays are touched.

A node is one block after its parent's: the keys and values of the layers that can be cut there (`block`), and, at some
nodes, the state after it of the layers that cannot (`snapshot`: sliding windows, recurrent state). Least recently
used leaves go first, so what is left can always be read from the root.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

PINNED_SHARE = 0.5  # of the limit, at most, is held by pins


@dataclass(eq=False)
class Node:
    """One block of tokens of a key, and what is kept of it."""

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

    @property
    def bytes(self) -> int:
        return self.block_bytes + self.snapshot_bytes


class PrefixTree:
    """Nodes of `block_tokens` tokens each; `limit` bytes and `leaf_limit` leaves (conversations) at most."""

    def __init__(
        self,
        block_tokens: int,
        limit: int,
        *,
        leaf_limit: int | None = None,
    ) -> None:
        self.block_tokens = block_tokens
        self.limit = limit
        self.bytes = 0
        self.evictions = 0
        self._leaf_limit = leaf_limit
        self._roots: dict[bytes, Node] = {}
        self._nodes: OrderedDict[Node, None] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._nodes)

    def root(self, key: bytes) -> Node:
        """The node before the first block of this key: it holds nothing."""
        root = self._roots.get(key)
        if root is None:
            digest = hashlib.blake2b(key, digest_size=20).digest()
            root = self._roots[key] = Node(None, (), digest, 0)
        return root

    def digest_after(self, digest: bytes, tokens: tuple[int, ...]) -> bytes:
        """The digest of the node that holds `tokens` after the node with this `digest`."""
        return hashlib.blake2b(digest + array("q", tokens).tobytes(), digest_size=20).digest()

    def path(self, key: bytes, tokens: Sequence[int]) -> list[Node]:
        """The nodes that hold the longest known prefix, from the first block on; they count as just used."""
        node, found, size = self.root(key), [], self.block_tokens
        for start in range(0, len(tokens) - size + 1, size):
            child = node.children.get(tuple(tokens[start : start + size]))
            if child is None:
                break
            found.append(child)
            node = child
        self.touch(found)
        return found

    def add(
        self, path: list[Node], key: bytes, tokens: tuple[int, ...], block: Any, size: int
    ) -> Node | None:
        """A new block after the last of `path`, which it joins; None where there is no room for it.

        Call `touch` on the path when all its blocks are there.
        """
        parent = path[-1] if path else self.root(key)
        if parent.depth and parent not in self._nodes:
            return None  # dropped in the meantime
        spared = set(path)
        if self.bytes + size > self.limit and not self._make_room(size, spared):
            return None
        node = Node(parent, tokens, self.digest_after(parent.digest, tokens), parent.depth + 1, block, size)
        parent.children[tokens] = node
        self._nodes[node] = None
        self.bytes += size
        path.append(node)
        if self._leaf_limit is not None:
            self._limit_leaves({*spared, node})
        return node

    def touch(self, path: list[Node]) -> None:
        """Mark these nodes as just used. The deepest count as the oldest of them, and go first."""
        for node in reversed(path):
            if node in self._nodes:
                self._nodes.move_to_end(node)

    def set_snapshot(self, node: Node, snapshot: Any, size: int) -> bool:
        """Remember the state after `node`; False where there is no room for it."""
        if node not in self._nodes or node.snapshot is not None:
            return node in self._nodes
        if not self._make_room(size, _ancestors(node)):
            return False
        node.snapshot, node.snapshot_bytes = snapshot, size
        self.bytes += size
        return True

    def drop_snapshot(self, node: Node) -> None:
        """Forget the state after `node`, unless that is pinned."""
        if node in self._nodes and not node.pinned:
            self.bytes -= node.snapshot_bytes
            node.snapshot, node.snapshot_bytes = None, 0

    def pin(self, node: Node) -> None:
        """Keep this node, and so all before it, as long as pins leave room for others."""
        node.pinned = True
        self._limit_pins()

    def _limit_pins(self) -> None:
        """Let the oldest pins go while pins hold more than their share."""
        pins = [each for each in self._nodes if each.pinned]
        covered = {each for pinned in pins for each in _ancestors(pinned)}
        while pins and sum(each.bytes for each in covered) > self.limit * PINNED_SHARE:
            pins.pop(0).pinned = False
            covered = {each for pinned in pins for each in _ancestors(pinned)}

    def resize(self, limit: int) -> None:
        """From now on hold at most `limit` bytes: what was used least recently goes."""
        self.limit = limit
        self._limit_pins()
        self._make_room(0, set())

    def clear(self) -> None:
        for node in self._nodes:
            node.parent = None  # a cycle would keep the arrays until Python looks for cycles
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
        """Let a leaf go, or the snapshot of a node that others stand on."""
        self.evictions += 1
        if node.children:
            self.bytes -= node.snapshot_bytes
            node.snapshot, node.snapshot_bytes = None, 0
            return
        self.bytes -= node.bytes
        del self._nodes[node]
        if node.parent is not None:
            del node.parent.children[node.tokens]

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


def _may_go(node: Node) -> bool:
    return not node.pinned and (not node.children or node.snapshot is not None)


def _ancestors(node: Node) -> set[Node]:
    """The node and all above it, without the root."""
    found: set[Node] = set()
    step: Node | None = node
    while step is not None and step.parent is not None:
        found.add(step)
        step = step.parent
    return found

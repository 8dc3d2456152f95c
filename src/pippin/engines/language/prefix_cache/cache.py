"""The prefix cache of one model: finds the known prefix of a prompt, and keeps computed prompts.

`PrefixTree` has them in blocks of tokens, bounded in bytes. A node is one block after its parent's. It holds the keys
and values of the layers that can be cut there (`block`) and, at some nodes, the state after it of the layers that
cannot (`snapshot`: sliding windows, recurrent state). Least recently used leaves are evicted first, so the rest can
always be read from the root. The tree itself touches no arrays; `DiskTier` moves its blocks to the disk and back.

Of `PrefixCache`, `match` looks up, `restore` copies what was found into a cache, `keep` stores. Nothing here changes
the state of callers: they decide who waits for whom, and where chunks end.
"""

import contextlib
import hashlib
import time
from array import array
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from msgspec import Struct, field

from pippin.core.models import CacheStats
from pippin.engines.language.kv_cache.kinds.base import PromptCache
from pippin.engines.language.kv_cache.layout import (
    Block,
    BlockLayout,
    CacheLayout,
    Snapshots,
    snapshot_arrays,
)
from pippin.engines.language.prefix_cache.disk import DiskCache, Entry, Stored

PINNED_SHARE = 0.5  # the most of the limit that pins may hold

PIECE = 8
"""Tokens: a block that begins like a prompt counts as known in multiples of this. Single tokens would not do: whoever
sees how much of a prompt was known could guess what others wrote, token by token."""


class Node(Struct, eq=False):
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
        self.leaves = 0
        self._leaf_limit = leaf_limit
        # Before the first blocks, by the digest of their key; only roots with children.
        self.roots: dict[bytes, Node] = {}
        self.nodes: OrderedDict[Node, None] = OrderedDict()  # least recently used first
        # Those whose state was kept in case somebody goes on there. Where memory is short these states go first.
        self.spare: dict[Node, None] = {}

    def root(self, key: bytes) -> Node:
        """The node before the first block of this key; it holds nothing."""
        return self.root_of(hashlib.blake2b(key, digest_size=20).digest())

    def root_of(self, digest: bytes) -> Node:
        """The root with the digest of its key."""
        # A new root is kept only once it has a child: callers can choose any number of salts, and so of keys.
        return self.roots.get(digest) or Node(None, (), digest, 0)

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
        if parent.depth and parent not in self.nodes:
            return None  # dropped in the meantime
        spared = set(path)
        if self.bytes + size > self.limit and not self._make_room(size, spared):
            return None
        node = self._insert(parent, tokens, block, size)
        path.append(node)
        if self._leaf_limit is not None:
            self._limit_leaves({*spared, node})
        return node

    def add_old(self, parent: Node, tokens: tuple[int, ...], block: Any, size: int) -> Node | None:
        """Add a block after `parent` as the least recently used, unless another would have to go for it. Returns the
        node of these tokens, if there is one now."""
        found = parent.children.get(tokens)
        if found is None and self.bytes + size <= self.limit and (not parent.depth or parent in self.nodes):
            found = self._insert(parent, tokens, block, size)
            self.nodes.move_to_end(found, last=False)
        return found

    def _insert(self, parent: Node, tokens: tuple[int, ...], block: Any, size: int) -> Node:
        node = Node(parent, tokens, self.digest_after(parent.digest, tokens), parent.depth + 1, block, size)
        self.leaves += not parent.depth or bool(parent.children)
        parent.children[tokens] = node
        insort(parent.in_order, tokens)
        if not parent.depth:
            self.roots[parent.digest] = parent
        self.nodes[node] = None
        self.bytes += size
        return node

    def touch(self, path: list[Node]) -> None:
        """Mark these nodes as just used. The deepest of them counts as the oldest and is evicted first."""
        for node in reversed(path):
            if node in self.nodes:
                self.nodes.move_to_end(node)

    def set_snapshot(self, node: Node, snapshot: Any, size: int, *, spare: bool = False) -> bool:
        """Keep the state after `node`; False if there is no room for it. Nothing goes for one to spare."""
        if node not in self.nodes or node.snapshot is not None:
            return node in self.nodes
        if self.bytes + size > self.limit and (spare or not self._make_room(size, ancestors(node))):
            return False
        node.snapshot, node.snapshot_bytes = snapshot, size
        if spare:
            self.spare[node] = None
        self.bytes += size
        return True

    def drop_snapshot(self, node: Node) -> None:
        """Drop the state after `node`, unless the node is pinned."""
        self.spare.pop(node, None)
        if node in self.nodes and not node.pinned:
            self.bytes -= node.snapshot_bytes
            node.snapshot, node.snapshot_bytes = None, 0

    def pin(self, node: Node) -> None:
        """Keep this node and all before it, as long as pins stay within their share of the limit."""
        if node.pinned:  # each chunk of a prompt asks for the pins of all of it
            return
        node.pinned = True
        self.spare.pop(node, None)
        self._limit_pins()

    def _limit_pins(self) -> None:
        """Release the oldest pins while pins hold more than their share."""
        pins = [each for each in self.nodes if each.pinned]
        covered = ancestors(*pins)
        while pins and sum(map(self._held, covered)) > self.limit * PINNED_SHARE:
            pins.pop(0).pinned = False
            covered = ancestors(*pins)

    def _held(self, node: Node) -> int:
        """Its bytes without a state to spare, which goes when it must."""
        return node.block_bytes if node in self.spare else node.bytes

    def resize(self, limit: int) -> None:
        """Hold at most `limit` bytes from now on; evicts what was used least recently."""
        self.limit = limit
        self._limit_pins()
        self._make_room(0, set())

    def clear(self) -> None:
        for node in self.nodes:
            node.parent = None  # a cycle would keep the node until the garbage collector runs
            _empty(node)
        self.roots.clear()
        self.nodes.clear()
        self.spare.clear()
        self.bytes = self.leaves = 0

    def _make_room(self, size: int, spared: set[Node]) -> bool:
        if size > self.limit:
            return False
        for node in list(self.spare):
            if self.bytes + size <= self.limit:
                return True
            self.drop_snapshot(node)
        while self.bytes + size > self.limit:
            ready = (node for node in self.nodes if not node.children or node.snapshot is not None)
            oldest = next((node for node in ready if _may_go(node, spared)), None)
            if oldest is None:
                return False
            self._shrink(oldest)
        return True

    def _shrink(self, node: Node) -> None:
        """Evict a leaf, or only the snapshot of a node with children."""
        self.evictions += 1
        if node.children:
            self.drop_snapshot(node)
            return
        self.bytes -= node.bytes
        _empty(node)
        self.spare.pop(node, None)
        del self.nodes[node]
        if node.parent is not None:
            del node.parent.children[node.tokens]
            del node.parent.in_order[bisect_left(node.parent.in_order, node.tokens)]
            self.leaves -= not node.parent.depth or bool(node.parent.children)
            if not node.parent.depth and not node.parent.children:
                del self.roots[node.parent.digest]

    def _limit_leaves(self, spared: set[Node]) -> None:
        while self._leaf_limit is not None and self.leaves > self._leaf_limit:
            leaf = next((node for node in self.nodes if not node.children and _may_go(node, spared)), None)
            if leaf is None:
                return
            while leaf is not None and leaf.depth and not leaf.children and _may_go(leaf, spared):
                parent = leaf.parent
                self._shrink(leaf)
                leaf = parent


def shared_length(first: Sequence[Any], second: Sequence[Any]) -> int:
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


def _may_go(node: Node, spared: set[Node]) -> bool:
    """Whether it may be forgotten, if it is the end of a conversation or only its state goes."""
    return not node.pinned and node not in spared


def resumable(path: Sequence[Node]) -> int:
    """How many nodes of a path there are up to the last with a state."""
    return max((number for number, node in enumerate(path, start=1) if node.snapshot is not None), default=0)


def _empty(node: Node) -> None:
    """Drop the arrays of an evicted node, which are no longer counted: others may still hold the node."""
    node.block, node.block_bytes, node.snapshot, node.snapshot_bytes = None, 0, None, 0


def ancestors(*nodes: Node) -> set[Node]:
    """The nodes and all above them, without roots."""
    found: set[Node] = set()
    for node in nodes:
        step: Node | None = node
        while step is not None and step.parent is not None and step not in found:
            found.add(step)
            step = step.parent
    return found


WRITES_A_STEP = 8  # nodes copied to the host in one step, or from it
RECALLED_SHARE = 0.5  # the most of the limit that a start fills with what an earlier process kept
RECALLED_AT_ONCE = 1 << 28  # bytes of that before a start is ready; the rest follows beside requests
RECALL_SECONDS = 2.0  # the most that this may take, on a slow disk or beside busy programs
RECALL_PAUSE = 0.0005  # seconds between looks at what the disk reads
STATE = "-state"
BITS = "-bfloat16"  # behind the name of an array of that type, which numpy lacks: its bits are stored


class DiskTier:
    """The disk tier of a prefix tree. Used on the step thread; the disk's own thread gets copies."""

    def __init__(self, disk: DiskCache, tree: PrefixTree, layout: BlockLayout) -> None:
        self.disk = disk
        self._tree = tree
        self._layout = layout
        # Nodes, and whether it is their state. Their arrays are the tree's: what is evicted meanwhile is not written.
        self.unwritten: deque[tuple[Node, bool]] = deque()
        self._recalling: Iterator[None] | None = self._recall() if layout.has_blocks else None

    @property
    def busy(self) -> bool:
        """Whether the disk is behind the memory, or the memory still takes what an earlier process kept."""
        return bool(self.unwritten) or self._recalling is not None

    def recall_first(self) -> None:
        """Put the newest of what an earlier process kept into the tree."""
        until = time.monotonic() + RECALL_SECONDS
        while (
            self._recalling is not None and self._tree.bytes < RECALLED_AT_ONCE and time.monotonic() < until
        ):
            self.recall_some()
            time.sleep(RECALL_PAUSE)

    def recall_some(self) -> None:
        """Put some of what an earlier process kept into the tree."""
        if self._recalling is not None and next(self._recalling, "over") is not None:
            self._recalling = None

    def _recall(self) -> Iterator[None]:
        """The last conversations go on as if the server had not been restarted: no prompt waits for the disk."""
        newest = self.disk.newest(int(self._tree.limit * RECALLED_SHARE))
        while not newest.done():
            yield
        names = [] if newest.exception() else newest.result()
        known: dict[str, Node] = {}
        parts = (names[start : start + WRITES_A_STEP] for start in range(0, len(names), WRITES_A_STEP))
        reads = (self.disk.read(part, for_request=False) for part in parts)
        coming = next(reads, None)
        while (read := coming) is not None:
            while not read.done():
                yield
            coming = next(reads, None)  # while these are put into the tree
            for entry in [] if read.exception() else read.result():
                # Metadata has no checksum: what somebody changed is left out.
                with contextlib.suppress(KeyError, ValueError):
                    if entry is not None:
                        self._put_back(entry, known)

    def _put_back(self, entry: Entry, known: dict[str, Node]) -> None:
        """Add a block or state to the tree. `known` has the nodes that were added so, by name."""
        name, after, tokens = (entry.metadata[key] for key in ("name", "after", "tokens"))
        node = known.get(after)
        if name == after + STATE and node is not None:
            self._set_snapshot(node, entry)
            return
        if entry.metadata["depth"] == "1":
            node = self._tree.root_of(bytes.fromhex(after))
        of_block = tuple(map(int, tokens.split()))
        if node is None or self._tree.digest_after(node.digest, of_block).hex() != name:
            return
        block = _block_of(entry.arrays)
        held = self._layout.held_bytes(block, self._tree.limit)
        if (added := self._tree.add_old(node, of_block, block, held)) is not None:
            known[name] = added

    def forget(self) -> None:
        """Read no more of what an earlier process kept."""
        self._recalling = None

    def wipe(self) -> None:
        self.unwritten.clear()
        self.disk.wipe()

    def write_some(self) -> None:
        """Copy some of what is new to the host and hand it to the disk, as far as that keeps up."""
        for _ in range(min(WRITES_A_STEP, len(self.unwritten))):
            if not self.disk.has_room:
                return
            self._write(*self.unwritten.popleft())

    def _write(self, node: Node, is_state: bool) -> None:
        name = node.digest.hex() + STATE * is_state
        blocks = {str(place): array for place, array in enumerate(node.block or ())}
        arrays = _named(node.snapshot or ()) if is_state else blocks
        if arrays and node.parent is not None and not self.disk.has(name):
            place = {"depth": str(node.depth), "after": (node if is_state else node.parent).digest.hex()}
            place["tokens"] = "" if is_state else " ".join(map(str, node.tokens))
            self.disk.write(name, _to_host(arrays), place)

    def find(self, key: bytes, tokens: Sequence[int]) -> "DiskRead | None":
        """Start to read what the disk has of a prompt beyond the tree; None if it has nothing."""
        size = self._tree.block_tokens
        path = self._tree.path(key, tokens)
        digests = [node.digest for node in path]
        digest = digests[-1] if digests else self._tree.root(key).digest
        for start in range(len(path) * size, len(tokens) - size + 1, size):
            digest = self._tree.digest_after(digest, tuple(tokens[start : start + size]))
            if self._layout.has_blocks and not self.disk.has(digest.hex()):
                break
            digests.append(digest)
        depth, known = len(digests), len(path)
        if path and self._layout.has_blocks:  # what is read counts as used then
            self.disk.use([node.digest.hex() for node in path])
        if self._layout.has_snapshots:
            known = resumable(path)
            while depth > known and not self.disk.has(digests[depth - 1].hex() + STATE):
                depth -= 1
        if depth <= known:
            return None
        names = [each.hex() for each in digests[len(path) : depth]] if self._layout.has_blocks else []
        if self._layout.has_snapshots:
            names.append(digests[depth - 1].hex() + STATE)
        return DiskRead(key, tuple(tokens[: depth * size]), len(path), self.disk.read(names))

    def take(self, read: "DiskRead") -> None:
        """Put a finished read into the tree. A failed read leaves the tree as it is."""
        if read.reply.exception() is not None:
            return
        entries = read.reply.result()
        state = entries.pop() if self._layout.has_snapshots else None
        size, tokens = self._tree.block_tokens, read.tokens
        path = self._tree.path(read.key, tokens)
        for depth in range(len(path), len(tokens) // size):
            block: Block = ()
            if self._layout.has_blocks:
                entry = entries[depth - read.known] if depth >= read.known else None
                if entry is None:
                    break
                block = _block_of(entry.arrays)
            start = depth * size
            held = self._layout.held_bytes(block, self._tree.limit)
            if self._tree.add(path, read.key, tokens[start : start + size], block, held) is None:
                break
        self._tree.touch(path)
        if state is not None and len(path) * size == len(tokens):
            self._set_snapshot(path[-1], state)

    def _set_snapshot(self, node: Node, state: Entry) -> None:
        snapshot = _unnamed(_to_device(state.arrays))
        held = self._layout.held_bytes(snapshot_arrays(snapshot), self._tree.limit)
        self._tree.set_snapshot(node, snapshot, held)

    def close(self) -> None:
        for each in self.unwritten:
            self._write(*each)
        self.disk.close()


class DiskRead(Struct, frozen=True, eq=False):
    """A read under way: the blocks of a prompt that the disk has, from number `known` to the end of `tokens`."""

    key: bytes
    tokens: tuple[int, ...]
    known: int  # blocks that the tree had when the read began
    reply: "Future[list[Entry | None]]"


def _named(snapshot: Snapshots) -> dict[str, mx.array]:
    return {
        f"{layer}.{place}.{len(snapshot)}.{len(state)}": array
        for layer, state in enumerate(snapshot)
        for place, array in enumerate(state)
        if array is not None
    }


def _unnamed(arrays: dict[str, mx.array]) -> Snapshots:
    states: dict[int, list[mx.array | None]] = {}
    for name, value in arrays.items():
        layer, place, _, length = map(int, name.split("."))
        states.setdefault(layer, [None] * length)[place] = value
    return tuple(tuple(states[layer]) for layer in sorted(states))


def _to_host(arrays: dict[str, mx.array]) -> Stored:
    stored = {}
    for name, value in arrays.items():
        if value.dtype == mx.bfloat16:
            stored[name + BITS] = np.array(value.view(mx.uint16))
        else:
            stored[name] = np.array(value)
    return stored


def _to_device(stored: Stored) -> dict[str, mx.array]:
    return {
        name.removesuffix(BITS): mx.array(array).view(mx.bfloat16) if name.endswith(BITS) else mx.array(array)
        for name, array in stored.items()
    }


def _block_of(stored: Stored) -> Block:
    arrays = _to_device(stored)
    return tuple(arrays[str(index)] for index in range(len(arrays)))


class Match(Struct, frozen=True, eq=False, kw_only=True):
    """The known prefix of a prompt: whole blocks and, if all layers can be cut, the part of one block more that begins
    alike."""

    asked: int  # tokens that were looked up
    known: int  # tokens of these that need not be computed
    in_tree: int  # tokens whose blocks are in the tree; beyond `known`, the state after them is missing
    blocks: list[Block]  # of the known tokens
    snapshot: Snapshots | None  # state of layers that cannot be cut, after the known tokens


class PrefixCache:
    """The tree in memory, and the disk below it."""

    keeps = True

    def __init__(self, tree: PrefixTree, layout: BlockLayout, disk: DiskCache | None = None) -> None:
        self.tree = tree
        self.block_tokens = tree.block_tokens
        self.state_tokens = tree.block_tokens  # after each so many a running sequence has its state kept
        # Some layers cannot be cut: a sequence can resume only where their state was kept, at the end of a chunk.
        self.has_snapshots = layout.has_snapshots
        # Some of these layers have no state but that of the sequence's end.
        self.has_state = layout.has_state
        self._layout = layout
        self._disk = None if disk is None else DiskTier(disk, tree, layout)
        self._hits = 0
        self._misses = 0
        self._hit_tokens = 0
        self._lookup_tokens = 0

    def open(self) -> None:
        """Before the first request: have in memory what an earlier process kept, as far as that takes little time."""
        if self._disk is not None:
            self._disk.recall_first()

    def recalled(self, key: bytes) -> tuple[int, ...]:
        """The conversation that an earlier process had last, as far as it is in memory again, and a token that is
        computed."""
        node, tokens, size = self.tree.root(key), list[int](), 0
        while node.children and size < RECALLED_AT_ONCE:
            node = next(iter(node.children.values()))  # the newest came first
            tokens += node.tokens
            size += node.bytes
        return tuple(tokens[: self.match(key, tokens[:-1]).known + 1])

    def match(self, key: bytes, tokens: Sequence[int], *, whole_blocks: bool = False) -> Match:
        """The known prefix of a prompt. `key` keeps adapters and tenants apart. `whole_blocks`: match no partial
        block."""
        path = self.tree.path(key, tokens)
        in_tree = len(path) * self.block_tokens
        begun = None
        if not (self.has_snapshots or whole_blocks):
            begun = self.tree.begun(key, path, tokens[in_tree : in_tree + self.block_tokens])
        usable = self._usable(path)
        if usable:
            self.tree.spare.pop(usable[-1], None)
        more, count = ([], 0) if begun is None else ([begun[0].block], begun[1])
        return Match(
            asked=len(tokens),
            known=len(usable) * self.block_tokens + count,
            in_tree=in_tree,
            blocks=[node.block for node in usable] + more,
            snapshot=usable[-1].snapshot if usable and self.has_snapshots else None,
        )

    def read_disk(self, key: bytes, tokens: Sequence[int]) -> DiskRead | None:
        """Start to read what the disk has of a prompt beyond the tree; None if it has nothing."""
        return None if self._disk is None else self._disk.find(key, tokens)

    def take(self, read: DiskRead) -> None:
        """Put a finished read into the tree."""
        if self._disk is not None:
            self._disk.take(read)

    def restore(self, match: Match, cache: PromptCache) -> None:
        """Fill a new cache with what was found. This counts as a hit or a miss."""
        self._lookup_tokens += match.asked
        if not match.known:
            self._misses += 1
            return
        self._hits += 1
        self._hit_tokens += match.known
        self._layout.restore(cache, match.blocks, match.snapshot, match.known)

    def keep(
        self,
        key: bytes,
        tokens: Sequence[int],
        cache: PromptCache,
        pins: Sequence[int] = (),
        *,
        moves: bool = False,
        spare: bool = False,
    ) -> int:
        """Store the cache of a sequence that has computed `tokens`, as whole blocks; returns how many tokens are new in
        the tree.

        If the sequence ends with a block, the state of layers that cannot be cut is kept there; where it `moves`, the
        disk waits for `settle`. One to `spare` is not for the disk, and nothing goes for it. `pins` are token counts up
        to which blocks are pinned, as far as they are in the tree.
        """
        size = self.block_tokens
        path = self.tree.path(key, tokens)
        known, stop = len(path) * size, len(tokens) // size * size
        for number, block in enumerate(self._layout.cut(cache, known, stop, size)):
            start = known + number * size
            added = tuple(tokens[start : start + size])
            held = self._layout.held_bytes(block, self.tree.limit)
            if self.tree.add(path, key, added, block, held) is None:
                break
            if self._disk is not None:
                self._disk.unwritten.append((path[-1], False))
        self.tree.touch(path)
        at_end = stop == len(tokens) == len(path) * size
        if self.has_snapshots and at_end and path and path[-1].snapshot is None:
            snapshot = self._layout.snapshot(cache)
            held = self._layout.held_bytes(snapshot_arrays(snapshot), self.tree.limit)
            if self.tree.set_snapshot(path[-1], snapshot, held, spare=spare) and not (moves or spare):
                self.settle(path[-1])
        for pin in pins:
            if 0 < pin // size <= len(path):
                self.tree.pin(path[pin // size - 1])
        return len(path) * size - known

    def keep_state(
        self, key: bytes, tokens: Sequence[int], cache: PromptCache, before: Node | None
    ) -> Node | None:
        """Store a running sequence that has reached the end of a block, and drop its earlier state at the node
        `before`. Returns the node of its state now, or None if that state was there already: it is not the sequence's
        own."""
        is_new = self._at(key, tokens) is None
        self.keep(key, tokens, cache, moves=True)
        node = self._at(key, tokens)
        if before is not None:
            self.tree.drop_snapshot(before)
        return node if is_new else None

    def settle(self, node: Node | None) -> None:
        """Note that the state at this node moves on no more, so that the disk may have it."""
        if self._disk is not None and node is not None:
            self._disk.unwritten.append((node, True))

    def resize(self, limit: int) -> None:
        """Hold at most `limit` bytes from now on. What small arrays take of the limit depends on it."""
        for node in self.tree.nodes:
            node.block_bytes = self._layout.held_bytes(node.block, limit)
            node.snapshot_bytes = self._layout.held_bytes(snapshot_arrays(node.snapshot or ()), limit)
        self.tree.bytes = sum(node.bytes for node in self.tree.nodes)
        self.tree.resize(limit)

    def block_end(self, length: int) -> int:
        """How many of the first `length` tokens of a sequence can be kept."""
        return length // self.block_tokens * self.block_tokens

    @property
    def busy(self) -> bool:
        """Whether blocks are still to go to the disk, or to come from it."""
        return self._disk is not None and self._disk.busy

    @property
    def upkeep(self) -> list[Callable[[], None]]:
        """What is to be called after each step: moves a few blocks and states to the disk, and from it."""
        return [] if self._disk is None else [self._disk.write_some, self._disk.recall_some]

    def clear(self, *, disk: bool) -> None:
        self.tree.clear()
        if self._disk is not None:
            self._disk.forget()
            if disk:
                self._disk.wipe()

    def close(self) -> None:
        if self._disk is not None:
            self._disk.close()

    def stats(self) -> CacheStats:
        disk = self._disk.disk if self._disk is not None else None
        return CacheStats(
            hits=self._hits,
            misses=self._misses,
            hit_tokens=self._hit_tokens,
            lookup_tokens=self._lookup_tokens,
            evictions=self.tree.evictions,
            entries=len(self.tree.nodes),
            bytes=self.tree.bytes,
            limit_bytes=self.tree.limit,
            disk_hits=disk.hits if disk else 0,
            disk_writes=disk.writes if disk else 0,
            disk_bytes=disk.bytes if disk else 0,
            disk_limit_bytes=disk.limit if disk else 0,
        )

    def _usable(self, path: list[Node]) -> list[Node]:
        """The part of a path from whose end a sequence can resume."""
        return path[: resumable(path)] if self.has_snapshots else path

    def _at(self, key: bytes, tokens: Sequence[int]) -> Node | None:
        """The node after exactly these tokens, if the state there is known."""
        path = self._usable(self.tree.path(key, tokens))
        return path[-1] if path and len(path) * self.block_tokens == len(tokens) else None


class NoPrefixes(PrefixCache):
    """Stands where nothing is kept of prompts: each is computed whole."""

    keeps = False

    def __init__(self) -> None:
        super().__init__(PrefixTree(1, 0), BlockLayout(CacheLayout(nn.Module(), ())))

    def keep(self, *given: Any, **how: Any) -> int:
        return 0

    def block_end(self, length: int) -> int:
        return 0

    def stats(self) -> CacheStats:
        return CacheStats()

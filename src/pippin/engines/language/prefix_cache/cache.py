"""The prefix cache of one model: finds the known prefix of a prompt, and keeps computed prompts.

`match` looks up, `restore` copies what was found into a cache, `keep` stores. Nothing here changes the state of
callers: they decide who waits for whom, and where chunks end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pippin.core.models import CacheStats
from pippin.engines.language.kv_cache.slots import PromptCache
from pippin.engines.language.prefix_cache.disk import DiskCache, DiskRead, DiskTier
from pippin.engines.language.prefix_cache.tree import (
    Block,
    BlockLayout,
    Node,
    PrefixTree,
    Snapshot,
    snapshot_arrays,
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Match:
    """The known prefix of a prompt: whole blocks and, if all layers can be cut, the part of one block more that begins
    alike."""

    asked: int  # tokens that were looked up
    known: int  # tokens of these that need not be computed
    in_tree: int  # tokens whose blocks are in the tree; beyond `known`, the state after them is missing
    blocks: list[Block]  # of the known tokens
    snapshot: Snapshot | None  # state of layers that cannot be cut, after the known tokens


class PrefixCache:
    """The tree in memory, and the disk below it."""

    keeps = True

    def __init__(self, tree: PrefixTree, layout: BlockLayout, disk: DiskCache | None = None) -> None:
        self.tree = tree
        self.block_tokens = tree.block_tokens
        # Some layers cannot be cut: a sequence can resume only where their state was kept, at the end of a chunk.
        self.has_snapshots = layout.has_snapshots
        # Some of these layers have no state but that of the sequence's end.
        self.has_state = layout.has_state
        self._layout = layout
        self._disk = None
        if disk is not None:
            self._disk = DiskTier(disk, tree, layout)
        self._hits = 0
        self._misses = 0
        self._hit_tokens = 0
        self._lookup_tokens = 0

    def match(self, key: bytes, tokens: Sequence[int], *, whole_blocks: bool = False) -> Match:
        """The known prefix of a prompt. `key` keeps adapters and tenants apart. `whole_blocks`: match no partial
        block."""
        path = self.tree.path(key, tokens)
        in_tree = len(path) * self.block_tokens
        begun = None
        if not (self.has_snapshots or whole_blocks):
            begun = self.tree.begun(key, path, tokens[in_tree : in_tree + self.block_tokens])
        usable = self._usable(path)
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

    def keep(self, key: bytes, tokens: Sequence[int], cache: PromptCache, pins: Sequence[int] = ()) -> int:
        """Store the cache of a sequence that has computed `tokens`, as whole blocks; returns how many tokens are new in
        the tree.

        If the sequence ends with a block, the state of layers that cannot be cut is kept there. `pins` are token counts
        up to which blocks are pinned, as far as they are in the tree.
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
                self._disk.keep(path[-1])
        self.tree.touch(path)
        at_end = stop == len(tokens) == len(path) * size
        if self.has_snapshots and at_end and path and path[-1].snapshot is None:
            self._keep_snapshot(path[-1], self._layout.snapshot(cache))
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
        self.keep(key, tokens, cache)
        node = self._at(key, tokens)
        if before is not None:
            self.tree.drop_snapshot(before)
        return node if is_new else None

    def block_end(self, length: int) -> int:
        """How many of the first `length` tokens of a sequence can be kept."""
        return length // self.block_tokens * self.block_tokens

    @property
    def upkeep(self) -> list[Callable[[], None]]:
        """What is to be called after each step: hands a few new blocks to the disk."""
        return [] if self._disk is None else [self._disk.write_some]

    def resize(self, limit: int) -> None:
        """Set the bytes that blocks may take in memory from now on."""
        self.tree.resize(limit)

    def clear(self, *, disk: bool) -> None:
        self.tree.clear()
        if disk and self._disk is not None:
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
            entries=len(self.tree),
            bytes=self.tree.bytes,
            limit_bytes=self.tree.limit,
            disk_hits=disk.hits if disk else 0,
            disk_writes=disk.writes if disk else 0,
            disk_bytes=disk.bytes if disk else 0,
            disk_limit_bytes=disk.limit if disk else 0,
        )

    def _usable(self, path: list[Node]) -> list[Node]:
        """The part of a path from whose end a sequence can resume."""
        if not self.has_snapshots:
            return path
        last = max((place for place, node in enumerate(path) if node.snapshot is not None), default=-1)
        return path[: last + 1]

    def _at(self, key: bytes, tokens: Sequence[int]) -> Node | None:
        """The node after exactly these tokens, if the state there is known."""
        path = self._usable(self.tree.path(key, tokens))
        return path[-1] if path and len(path) * self.block_tokens == len(tokens) else None

    def _keep_snapshot(self, node: Node, snapshot: Snapshot) -> None:
        size = self._layout.held_bytes(snapshot_arrays(snapshot), self.tree.limit)
        if self.tree.set_snapshot(node, snapshot, size) and self._disk is not None:
            self._disk.keep(node)


class NoPrefixes:
    """Stands where nothing is kept of prompts: each is computed whole."""

    keeps = has_snapshots = has_state = False
    block_tokens = 1

    def match(self, key: bytes, tokens: Sequence[int], *, whole_blocks: bool = False) -> Match:
        return Match(asked=len(tokens), known=0, in_tree=0, blocks=[], snapshot=None)

    def read_disk(self, key: bytes, tokens: Sequence[int]) -> DiskRead | None:
        return None

    def take(self, read: DiskRead) -> None:
        pass

    def restore(self, match: Match, cache: PromptCache) -> None:
        pass

    def keep(self, key: bytes, tokens: Sequence[int], cache: PromptCache, pins: Sequence[int] = ()) -> int:
        return 0

    def keep_state(
        self, key: bytes, tokens: Sequence[int], cache: PromptCache, before: Node | None
    ) -> Node | None:
        return None

    def block_end(self, length: int) -> int:
        return 0

    @property
    def upkeep(self) -> list[Callable[[], None]]:
        return []

    def resize(self, limit: int) -> None:
        pass

    def clear(self, *, disk: bool) -> None:
        pass

    def close(self) -> None:
        pass

    def stats(self) -> CacheStats:
        return CacheStats()


Prefixes = PrefixCache | NoPrefixes
"""What an engine has for a prefix cache."""

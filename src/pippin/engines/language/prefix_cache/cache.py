"""The prefix cache of one model: finds, restores and keeps computed prompts, and says who should wait for whom."""

from collections.abc import Iterable, Sequence

from pippin.core.models import CacheStats
from pippin.engines.language.kv_cache.slots import PromptCache
from pippin.engines.language.prefix_cache.blocks import BlockLayout, Snapshot, bytes_of, snapshot_arrays
from pippin.engines.language.prefix_cache.disk import DiskCache, DiskTier
from pippin.engines.language.prefix_cache.tree import Node, PrefixTree
from pippin.engines.language.step.sequences import Prompt, Row


class PrefixCache:
    def __init__(self, tree: PrefixTree, layout: BlockLayout, disk: DiskCache | None = None) -> None:
        self.tree = tree
        self._layout = layout
        self._disk = None
        if disk is not None:
            self._disk = DiskTier(
                disk, tree, has_blocks=layout.has_blocks, has_snapshots=layout.has_snapshots
            )
        self._hits = 0
        self._misses = 0
        self._hit_tokens = 0
        self._lookup_tokens = 0

    @property
    def has_snapshots(self) -> bool:
        return self._layout.has_snapshots

    @property
    def has_state(self) -> bool:
        """Some layers' state is only ever that of the row's end."""
        return self._layout.has_state

    def leader(self, prompt: Prompt, others: Iterable[Prompt]) -> Prompt | None:
        """A prompt under way that will soon have computed more of this one than the tree has."""
        size = self.tree.block_tokens
        known = len(self._usable(self.tree.path(prompt.request.job.key, prompt.identity))) * size
        for other in others:
            if other.ticket is prompt.ticket or other.request.job.key != prompt.request.job.key:
                continue
            shared = other.block_border(_shared(prompt.identity, other.identity), size)
            if shared <= max(known, other.ticket.computed):
                continue
            if self.has_snapshots:
                other.borders.add(shared)
            return other
        return None

    def fetched(self, prompt: Prompt) -> bool:
        """Bring in what the disk has of a prompt; False as long as that is under way."""
        if self._disk is None:
            return True
        if not prompt.fetched:
            prompt.fetched = True
            prompt.loading = self._disk.find(prompt.request.job.key, prompt.identity)
        if prompt.loading is None:
            return True
        if not prompt.loading.reply.done():
            return False
        self._disk.take(prompt.loading)
        prompt.loading = None
        return True

    def write_some(self) -> None:
        """Hand a few new blocks to the disk."""
        if self._disk is not None:
            self._disk.write_some()

    def clear(self, *, disk: bool) -> None:
        self.tree.clear()
        if disk and self._disk is not None:
            self._disk.wipe()

    def close(self) -> None:
        if self._disk is not None:
            self._disk.close()

    def begin(self, prompt: Prompt) -> int:
        """Look the prompt up, and fill its cache, which is new, with what is known; gives how many tokens that is."""
        size, tokens = self.tree.block_tokens, prompt.identity[:-1]  # what is sampled from must be computed
        path = self.tree.path(prompt.request.job.key, tokens)
        usable = self._usable(path)
        self._lookup_tokens += len(tokens)
        if self.has_snapshots:
            job = prompt.request.job
            ends = {len(tokens), *(pin for pin in job.pins if pin <= len(tokens)), len(path) * size}
            prompt.borders |= {prompt.block_border(end, size) for end in ends}
        if not usable:
            self._misses += 1
            return 0
        self._hits += 1
        known = len(usable) * size
        self._hit_tokens += known
        snapshot = usable[-1].snapshot if self.has_snapshots else None
        assert prompt.cache is not None
        self._layout.restore(prompt.cache, [node.block for node in usable], snapshot, known)
        return known

    def _usable(self, path: list[Node]) -> list[Node]:
        if not self.has_snapshots:
            return path
        last = max((place for place, node in enumerate(path) if node.snapshot is not None), default=-1)
        return path[: last + 1]

    def keep(self, key: bytes, tokens: Sequence[int], cache: PromptCache, pins: Sequence[int] = ()) -> int:
        """Remember a row that stands after `tokens`, as whole blocks; gives the number of tokens new in the tree.

        If it stands on a block's border, the state of layers that cannot be cut is kept there.
        """
        size = self.tree.block_tokens
        path = self.tree.path(key, tokens)
        known, stop = len(path) * size, len(tokens) // size * size
        for place, block in enumerate(self._layout.cut(cache, known, stop, size)):
            start = known + place * size
            if self.tree.add(path, key, tuple(tokens[start : start + size]), block, bytes_of(block)) is None:
                break
            if self._disk is not None:
                self._disk.keep(path[-1])
        self.tree.touch(path)
        if (
            self.has_snapshots
            and stop == len(tokens) == len(path) * size
            and path
            and path[-1].snapshot is None
        ):
            self._keep_snapshot(path[-1], self._layout.snapshot(cache))
        for pin in pins:
            if 0 < pin // size <= len(path):
                self.tree.pin(path[pin // size - 1])
        return len(path) * size - known

    def keep_state(self, row: Row, tokens: Sequence[int], cache: PromptCache) -> None:
        """Remember a running row on a block's border, instead of what was remembered of its state before."""
        key = row.request.job.key
        fresh = self._at(key, tokens) is None
        self.keep(key, tokens, cache)
        node = self._at(key, tokens)
        if row.state_node is not None:
            self.tree.drop_snapshot(row.state_node)
        row.state_node = node if fresh else None

    def _at(self, key: bytes, tokens: Sequence[int]) -> Node | None:
        """The node after exactly these tokens, if the state there is known."""
        path = self._usable(self.tree.path(key, tokens))
        return path[-1] if path and len(path) * self.tree.block_tokens == len(tokens) else None

    def _keep_snapshot(self, node: Node, snapshot: Snapshot) -> None:
        if (
            self.tree.set_snapshot(node, snapshot, bytes_of(snapshot_arrays(snapshot)))
            and self._disk is not None
        ):
            self._disk.keep(node)

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


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common prefix."""
    low, high = 0, min(len(first), len(second))
    while low < high:  # slices compare in C: halving is quicker than a loop over tokens
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

"""Blocks of the prefix tree on their way to and from the disk tier."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

import mlx.core as mx
import numpy as np

from pippin.engines.language.disk_cache import DiskCache, Entry, Stored
from pippin.engines.language.prefix_blocks import Block, Snapshot, bytes_of, snapshot_arrays
from pippin.engines.language.prefix_tree import Node, PrefixTree

WRITES_A_STEP = 8  # blocks copied to the host in one step
STATE = "-state"
NUMPY_LACKS = {mx.bfloat16: mx.uint16}


class DiskTier:
    """On the step thread; the disk's own thread gets copies."""

    def __init__(self, disk: DiskCache, tree: PrefixTree, *, has_blocks: bool, has_snapshots: bool) -> None:
        self.disk = disk
        self._tree = tree
        self._has_blocks = has_blocks
        self._has_snapshots = has_snapshots
        self._unwritten: deque[tuple[str, dict[str, mx.array]]] = deque()

    def keep(self, node: Node) -> None:
        """A block or a snapshot is new in the tree."""
        name = node.digest.hex()
        if node.block and not self.disk.has(name):
            self._unwritten.append((name, {str(place): array for place, array in enumerate(node.block)}))
        if node.snapshot is not None and not self.disk.has(name + STATE):
            self._unwritten.append((name + STATE, _named(node.snapshot)))

    def wipe(self) -> None:
        self._unwritten.clear()
        self.disk.wipe()

    def write_some(self, most: int = WRITES_A_STEP) -> None:
        for _ in range(min(most, len(self._unwritten))):
            name, arrays = self._unwritten.popleft()
            self.disk.write(name, *_to_host(arrays))

    def find(self, key: bytes, tokens: Sequence[int]) -> "Loading | None":
        """Start to read what the disk has after what the tree knows."""
        size = self._tree.block_tokens
        path = self._tree.path(key, tokens)
        digests = [node.digest for node in path]
        digest = digests[-1] if digests else self._tree.root(key).digest
        for start in range(len(path) * size, len(tokens) - size + 1, size):
            digest = self._tree.digest_after(digest, tuple(tokens[start : start + size]))
            if self._has_blocks and not self.disk.has(digest.hex()):
                break
            digests.append(digest)
        depth, known = len(digests), len(path)
        if self._has_snapshots:
            known = max(
                (place + 1 for place, node in enumerate(path) if node.snapshot is not None), default=0
            )
            while depth > known and not self.disk.has(digests[depth - 1].hex() + STATE):
                depth -= 1
        if depth <= known:
            return None
        names = [each.hex() for each in digests[len(path) : depth]] if self._has_blocks else []
        if self._has_snapshots:
            names.append(digests[depth - 1].hex() + STATE)
        return Loading(key, tuple(tokens[: depth * size]), len(path), self.disk.read(names))

    def take(self, loading: "Loading") -> None:
        """Put what was read into the tree."""
        if loading.reply.exception() is not None:
            return
        entries = loading.reply.result()
        state = entries.pop() if self._has_snapshots else None
        size, tokens = self._tree.block_tokens, loading.tokens
        path = self._tree.path(loading.key, tokens)
        for depth in range(len(path), len(tokens) // size):
            block: Block = ()
            if self._has_blocks:
                entry = entries[depth - loading.known] if depth >= loading.known else None
                if entry is None:
                    break
                arrays = _to_device(entry)
                block = tuple(arrays[str(index)] for index in range(len(arrays)))
            start = depth * size
            if (
                self._tree.add(path, loading.key, tokens[start : start + size], block, bytes_of(block))
                is None
            ):
                break
        self._tree.touch(path)
        if state is not None and len(path) * size == len(tokens):
            snapshot = _unnamed(_to_device(state))
            self._tree.set_snapshot(path[-1], snapshot, bytes_of(snapshot_arrays(snapshot)))

    def close(self) -> None:
        self.write_some(len(self._unwritten))
        self.disk.close()


class Loading:
    """What the disk has of a prompt is under way: blocks from `known` on, up to the end of `tokens`."""

    def __init__(
        self,
        key: bytes,
        tokens: tuple[int, ...],
        known: int,
        reply: "Future[list[Entry | None]]",
    ) -> None:
        self.key = key
        self.tokens = tokens
        self.known = known
        self.reply = reply


def _named(snapshot: Snapshot) -> dict[str, mx.array]:
    return {
        f"{layer}.{place}.{len(snapshot)}.{len(state)}": array
        for layer, state in enumerate(snapshot)
        for place, array in enumerate(state)
        if array is not None
    }


def _unnamed(arrays: dict[str, mx.array]) -> Snapshot:
    states: dict[int, list[mx.array | None]] = {}
    for name, array in arrays.items():
        layer, place, _, length = map(int, name.split("."))
        states.setdefault(layer, [None] * length)[place] = array
    return tuple(tuple(states[layer]) for layer in sorted(states))


def _to_host(arrays: dict[str, mx.array]) -> tuple[Stored, dict[str, str]]:
    types, stored = {}, {}
    for name, array in arrays.items():
        if array.dtype in NUMPY_LACKS:
            types[name] = "bfloat16"
            array = array.view(NUMPY_LACKS[array.dtype])
        stored[name] = np.array(array)
    return stored, types


def _to_device(entry: Entry) -> dict[str, mx.array]:
    return {
        name: mx.array(array).view(mx.bfloat16) if entry.types.get(name) == "bfloat16" else mx.array(array)
        for name, array in entry.arrays.items()
    }

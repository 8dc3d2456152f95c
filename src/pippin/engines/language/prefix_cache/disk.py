"""Moves blocks of the prefix tree to the disk and back."""

import errno
import hashlib
import logging
import os
import secrets
import stat
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import mlx.core as mx
import numpy as np
from msgspec import Struct
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pippin.core.safetensors import digest_of
from pippin.engines.language.prefix_cache.folder import SUFFIX, CacheFile, cache_files, delete, model_folders
from pippin.engines.language.prefix_cache.tree import (
    Block,
    BlockLayout,
    Node,
    PrefixTree,
    Snapshot,
    snapshot_arrays,
)

log = logging.getLogger(__name__)

VERSION: Final = "1"
BACKLOG: Final = 512  # files that may wait to be written; more are dropped
SWEEP_EVERY: Final = 64  # files written between checks of the folder's size

Stored = dict[str, np.ndarray]
Found = TypeVar("Found")


class Entry(Struct, frozen=True):
    arrays: Stored
    types: dict[str, str]  # dtypes that numpy lacks, by the name of the array


class DiskCache:
    """Files of arrays, one for each block or snapshot, written and read by the cache's own thread.

    `folder` may be shared: the files of this model lie in a folder under it. `limit` is in bytes, over all models.
    """

    def __init__(self, folder: Path, fingerprint: str, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self.hits = 0
        self.writes = 0
        self._root = folder
        self._folder = folder / fingerprint
        self._open_folder()
        self._waiting: set[str] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefix-cache-disk")
        self.sweep()

    def has(self, name: str) -> bool:
        return (self._folder / (name + SUFFIX)).exists()

    def write(self, name: str, arrays: Stored, types: dict[str, str]) -> None:
        if len(self._waiting) < BACKLOG and name not in self._waiting and not self.has(name):
            self._waiting.add(name)
            self._do(self._store, name, arrays, types)

    def read(self, names: Sequence[str]) -> "Future[list[Entry | None]]":
        return self._do(lambda: [self._load(name) for name in names])

    def wipe(self) -> None:
        """Delete all files of this model that may be deleted."""
        self._do(delete, cache_files(self._folder)).exception()  # waits for the end; failures are in the log
        self.sweep().exception()

    def sweep(self) -> "Future[None]":
        """Enforce the limit over all models in the folder."""
        return self._do(self._sweep)

    def close(self) -> None:
        """Write the files that still wait, and end the thread."""
        self._thread.shutdown()

    def _do(self, act: Callable[..., Found], *given: Any) -> "Future[Found]":
        """What the thread does after all that it was given before."""
        done = self._thread.submit(act, *given)
        done.add_done_callback(_tell)
        return done

    def _store(self, name: str, arrays: Stored, types: dict[str, str]) -> None:
        self._waiting.discard(name)
        metadata = {f"type.{key}": value for key, value in types.items()}
        metadata |= {"version": VERSION, "name": name, "checksum": _checksum(arrays)}
        data = save(arrays, metadata)
        if len(data) > self.limit:
            return
        unfinished = self._folder / f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
        self._open_folder()  # an operator may have deleted it
        try:
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            unfinished.replace(self._folder / (name + SUFFIX))
        finally:
            unfinished.unlink(missing_ok=True)
        self.writes += 1
        self.bytes += len(data)
        if self.bytes > self.limit or self.writes % SWEEP_EVERY == 0:
            self._sweep()

    def _open_folder(self) -> None:
        """Make the folder accessible to this user alone: its files reveal prompts."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        mode = self._folder.lstat().st_mode
        if stat.S_ISLNK(mode):  # whoever made the link chose who can read there
            raise OSError(errno.ELOOP, f"{self._folder.name} in it is a link")
        if mode & 0o077:  # made by an earlier version
            self._folder.chmod(0o700)

    def _load(self, name: str) -> Entry | None:
        path = self._folder / (name + SUFFIX)
        try:
            if not stat.S_ISREG(path.lstat().st_mode):  # reading a pipe would block
                raise ValueError("it is no ordinary file")
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            if metadata.get("version") != VERSION or metadata.get("name") != name:
                raise ValueError("it belongs to something else")
            if metadata.get("checksum") != _checksum(arrays):
                raise ValueError("its checksum differs")
            os.utime(path)
        except FileNotFoundError:
            return None
        except (SafetensorError, ValueError, OSError, MemoryError) as error:
            log.warning("dropped a file of the prefix cache: %s: %s", path.name, error)
            path.unlink(missing_ok=True)
            return None
        self.hits += 1
        types = {
            key.removeprefix("type."): value for key, value in metadata.items() if key.startswith("type.")
        }
        return Entry(arrays, types)

    def _sweep(self) -> None:
        """The least recently used files are deleted."""
        found: list[CacheFile] = []
        for folder in model_folders(self._root):
            files = list(cache_files(folder))
            found += [file for file in files if file.finished]
            delete(file for file in files if not file.finished)
        self.bytes = sum(file.size for file in found)
        for file in sorted(found, key=lambda file: (file.used, file.path)):
            if self.bytes <= self.limit:
                return
            self.bytes -= delete([file])[1]


def _tell(done: "Future[Any]") -> None:
    """A full or vanished disk costs the cache, and not the server."""
    if isinstance(error := done.exception(), OSError):
        log.warning("the prefix cache's folder fails: %s", error.strerror)
    elif error is not None:
        raise error


def _checksum(arrays: Stored) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].dtype}{arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def fingerprint(folder: Path, *details: str) -> str:
    """A name for a model's files and all else (`details`) that shapes its caches, so that no other model uses them."""
    return digest_of(folder, VERSION, *details)


WRITES_A_STEP = 8  # blocks copied to the host in one step
STATE = "-state"
NUMPY_LACKS = {mx.bfloat16: mx.uint16}


class DiskTier:
    """The disk tier of a prefix tree. Used on the step thread; the disk's own thread gets copies."""

    def __init__(self, disk: DiskCache, tree: PrefixTree, layout: BlockLayout) -> None:
        self.disk = disk
        self._tree = tree
        self._layout = layout
        self._unwritten: deque[tuple[str, dict[str, mx.array]]] = deque()

    def keep(self, node: Node) -> None:
        """Queue what is new at a node for `write_some`."""
        name = node.digest.hex()
        if node.block and not self.disk.has(name):
            self._unwritten.append((name, {str(place): array for place, array in enumerate(node.block)}))
        if node.snapshot is not None and not self.disk.has(name + STATE):
            self._unwritten.append((name + STATE, _named(node.snapshot)))

    def wipe(self) -> None:
        self._unwritten.clear()
        self.disk.wipe()

    def write_some(self, most: int = WRITES_A_STEP) -> None:
        """Copy some queued arrays to the host, and hand them to the disk."""
        for _ in range(min(most, len(self._unwritten))):
            name, arrays = self._unwritten.popleft()
            self.disk.write(name, *_to_host(arrays))

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
        if self._layout.has_snapshots:
            known = max(
                (place + 1 for place, node in enumerate(path) if node.snapshot is not None), default=0
            )
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
                arrays = _to_device(entry)
                block = tuple(arrays[str(index)] for index in range(len(arrays)))
            start = depth * size
            held = self._layout.held_bytes(block, self._tree.limit)
            if self._tree.add(path, read.key, tokens[start : start + size], block, held) is None:
                break
        self._tree.touch(path)
        if state is not None and len(path) * size == len(tokens):
            snapshot = _unnamed(_to_device(state))
            held = self._layout.held_bytes(snapshot_arrays(snapshot), self._tree.limit)
            self._tree.set_snapshot(path[-1], snapshot, held)

    def close(self) -> None:
        self.write_some(len(self._unwritten))
        self.disk.close()


@dataclass(frozen=True, eq=False)
class DiskRead:
    """A read under way: the blocks of a prompt that the disk has, from number `known` to the end of `tokens`."""

    key: bytes
    tokens: tuple[int, ...]
    known: int  # blocks that the tree had when the read began
    reply: "Future[list[Entry | None]]"

    @property
    def arrived(self) -> bool:
        """Whether `DiskTier.take` can take the read, which is done or has failed."""
        return self.reply.done()


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

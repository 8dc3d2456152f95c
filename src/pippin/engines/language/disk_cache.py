"""The disk tier of the prefix cache: one file for each block, read and written by a thread that sees no arrays of MLX.

Files are made under another name and then renamed, so a killed server leaves no half of one and servers may share a
folder. A file that is damaged, or of another model or version, is a miss and goes.
"""

import hashlib
import logging
import os
import queue
import secrets
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

log = logging.getLogger(__name__)

VERSION: Final = "1"
SUFFIX: Final = ".safetensors"
BACKLOG: Final = 512  # files that wait to be written; more are not written at all
SWEEP_EVERY: Final = 64  # files written between looks at the folder's size
STALE_SECONDS: Final = 600.0  # after which another server's unfinished file counts as left behind

Stored = dict[str, np.ndarray]


class Write(Struct, frozen=True):
    name: str
    arrays: Stored
    types: dict[str, str]  # of arrays whose type numpy does not have, by name


class Read(Struct, frozen=True):
    names: tuple[str, ...]
    reply: "Future[list[Entry | None]]"


class Wipe(Struct, frozen=True):
    reply: "Future[None]"


class Entry(Struct, frozen=True):
    arrays: Stored
    types: dict[str, str]


class DiskCache:
    """`folder` may be shared; files of this model lie in a folder of their own under it."""

    def __init__(self, folder: Path, fingerprint: str, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self.hits = 0
        self.writes = 0
        self._root = folder
        self._folder = folder / fingerprint
        self._folder.mkdir(parents=True, exist_ok=True)
        self._orders: queue.SimpleQueue[Write | Read | Wipe | None] = queue.SimpleQueue()
        self._waiting: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="prefix-cache-disk", daemon=True)
        self._thread.start()

    def has(self, name: str) -> bool:
        return (self._folder / (name + SUFFIX)).exists()

    def write(self, name: str, arrays: Stored, types: dict[str, str]) -> None:
        if len(self._waiting) < BACKLOG and name not in self._waiting and not self.has(name):
            self._waiting.add(name)
            self._orders.put(Write(name, arrays, types))

    def read(self, names: Sequence[str]) -> "Future[list[Entry | None]]":
        reply: Future[list[Entry | None]] = Future()
        self._orders.put(Read(tuple(names), reply))
        return reply

    def wipe(self) -> None:
        """Delete all files of this model."""
        reply: Future[None] = Future()
        self._orders.put(Wipe(reply))
        reply.result()

    def close(self) -> None:
        """Finish what waits to be written."""
        self._orders.put(None)
        self._thread.join()

    def _work(self) -> None:
        self._sweep()
        while (order := self._orders.get()) is not None:
            try:
                match order:
                    case Write(name, arrays, types):
                        self._waiting.discard(name)
                        self._store(name, arrays, types)
                    case Read(names, reply):
                        reply.set_result([self._load(name) for name in names])
                    case Wipe(reply):
                        for path in self._folder.glob("*"):
                            path.unlink(missing_ok=True)
                        self.bytes = 0
                        reply.set_result(None)
            except OSError as error:  # a full or vanished disk costs the cache, not the server
                log.warning("the prefix cache's folder fails: %s", error.strerror)
                if isinstance(order, (Read, Wipe)) and not order.reply.done():
                    order.reply.set_exception(error)

    def _store(self, name: str, arrays: Stored, types: dict[str, str]) -> None:
        metadata = {f"type.{key}": value for key, value in types.items()}
        metadata |= {"version": VERSION, "name": name, "checksum": _checksum(arrays)}
        data = save(arrays, metadata)
        if len(data) > self.limit:
            return
        unfinished = self._folder / f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
        try:
            unfinished.write_bytes(data)
            unfinished.replace(self._folder / (name + SUFFIX))
        finally:
            unfinished.unlink(missing_ok=True)
        self.writes += 1
        self.bytes += len(data)
        if self.bytes > self.limit or self.writes % SWEEP_EVERY == 0:
            self._sweep()

    def _load(self, name: str) -> Entry | None:
        path = self._folder / (name + SUFFIX)
        try:
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
        """Hold the limit over all models in the folder: what was not used for longest goes."""
        found: list[tuple[float, int, str]] = []
        now = time.time()
        for folder in os.scandir(self._root):
            if not folder.is_dir(follow_symlinks=False):
                continue
            for file in os.scandir(folder):
                try:
                    status = file.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if file.name.endswith(SUFFIX):
                    found.append((status.st_mtime, status.st_size, file.path))
                elif file.name.startswith(".") and now - status.st_mtime > STALE_SECONDS:
                    Path(file.path).unlink(missing_ok=True)
        self.bytes = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if self.bytes <= self.limit:
                return
            Path(path).unlink(missing_ok=True)
            self.bytes -= size


def _checksum(arrays: Stored) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].dtype}{arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def fingerprint(folder: Path, *details: str) -> str:
    """Of a model's files and of whatever else shapes its caches."""
    digest = hashlib.blake2b(digest_size=12)
    for detail in (VERSION, *details):
        digest.update(detail.encode() + b"\0")
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        if path.exists():
            status = path.stat()
            digest.update(f"{path.name} {status.st_size}".encode())
            with path.open("rb") as file:
                digest.update(file.read(1 << 16))
                file.seek(max(status.st_size - (1 << 16), 0))
                digest.update(file.read(1 << 16))
    return digest.hexdigest()

"""The prefix cache's files on the disk, told apart from anything else that an operator keeps in `cache_dir`.

The files are `FOLDER/<fingerprint of a model>/<digest of a prompt's blocks>[-state].safetensors`. Nothing else is ever
counted or deleted.
"""

import contextlib
import errno
import logging
import os
import re
import secrets
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from msgspec import Struct
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pippin.core.safetensors import digest_of

SUFFIX: Final = ".safetensors"
STALE_SECONDS: Final = 600.0  # after which another server's unfinished file counts as abandoned

_MODEL: Final = re.compile(r"[0-9a-f]{24}")
_FINISHED: Final = re.compile(r"[0-9a-f]{40}(-state)?\.safetensors")
_UNFINISHED: Final = re.compile(r"\.[0-9a-f]{40}(-state)?\.[0-9]+\.[0-9a-f]{8}")


class CacheFile(Struct, frozen=True):
    path: Path
    size: int
    used: float  # time of the last write or read, seconds since the epoch
    finished: bool


def model_folders(folder: Path) -> list[Path]:
    """The folders with cached prompts, one per model."""
    return sorted(
        Path(entry.path)
        for entry in _entries(folder)
        if _MODEL.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
    )


def cache_files(model_folder: Path) -> Iterator[CacheFile]:
    """The cache files of one model, except those that others delete meanwhile."""
    for entry in _entries(model_folder):
        finished = _FINISHED.fullmatch(entry.name) is not None
        if not finished and not _UNFINISHED.fullmatch(entry.name):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        yield CacheFile(Path(entry.path), status.st_size, status.st_mtime, finished)


def _entries(folder: Path) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def delete(files: Iterable[CacheFile]) -> None:
    """Delete files. A server that wanted one gets a cache miss."""
    for file in files:
        # An unfinished file may still be written by a server, unless it is old.
        if file.finished or time.time() - file.used > STALE_SECONDS:
            file.path.unlink(missing_ok=True)


log = logging.getLogger(__name__)

VERSION: Final = "3"
READERS: Final = 4  # threads: one alone reads less than a disk gives, since it checks what it has read
BACKLOG: Final = 512  # files that may wait to be written
BACKLOG_BYTES: Final = 1 << 28
SWEEP_EVERY: Final = 64  # files written between checks of the folder's size
PAUSE: Final = 60.0  # seconds without a write after one that failed: each block would fail, and say so

Stored = dict[str, np.ndarray]
Found = TypeVar("Found")


class Entry(Struct, frozen=True):
    arrays: Stored
    metadata: dict[str, str]


class DiskCache:
    """Files of arrays, one for each block or snapshot, written and read by the cache's own threads.

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
        self._again = 0.0  # when the next file is written, monotonic seconds
        self._waiting: dict[str, int] = {}  # bytes of the files that are to be written, by name
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefix-cache-disk")
        # Whoever waits for blocks does not wait for those that are still to be written.
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="prefix-cache-reads")
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="prefix-cache-reader")
        self.sweep()

    def has(self, name: str) -> bool:
        return (self._folder / (name + SUFFIX)).exists()

    @property
    def has_room(self) -> bool:
        """Whether more may be written now: a slow disk would fill the memory."""
        return len(self._waiting) < BACKLOG and sum(list(self._waiting.values())) < BACKLOG_BYTES

    def write(self, name: str, arrays: Stored, metadata: dict[str, str]) -> None:
        """Write a file. `metadata` has under `after` the name of the file that is needed before it, if any is."""
        if name not in self._waiting and not self.has(name):
            self._waiting[name] = sum(array.nbytes for array in arrays.values())
            self._do(self._thread, self._store, name, arrays, metadata)

    def read(self, names: Sequence[str], *, for_request: bool = True) -> "Future[list[Entry | None]]":
        """Read files. Those that are read `for_request` count as just used."""
        return self._do(self._reading, self._load_all, names, for_request)

    def newest(self, limit: int) -> "Future[list[str]]":
        """The files that were used last, at most `limit` bytes, each after those that it needs. Of the first
        conversation that is too large, its beginning."""
        return self._do(self._reading, self._find_newest, limit)

    def use(self, names: Sequence[str]) -> None:
        """Count these files as just used."""
        self._do(self._thread, self._use, names)

    def wipe(self) -> None:
        """Delete all files of this model that may be deleted."""
        wiped = self._do(self._thread, delete, cache_files(self._folder))
        wiped.exception()  # waits for its end; failures are in the log
        self.sweep().exception()

    def sweep(self) -> "Future[None]":
        """Enforce the limit over all models in the folder."""
        return self._do(self._thread, self._sweep)

    def close(self) -> None:
        """Write the files that still wait, and end the threads."""
        for each in (self._thread, self._reading, self._readers):
            each.shutdown()

    def _do(self, thread: ThreadPoolExecutor, act: Callable[..., Found], *given: Any) -> "Future[Found]":
        """What a thread does after all that it was given before."""
        done = thread.submit(act, *given)
        done.add_done_callback(_tell)
        return done

    def _store(self, name: str, arrays: Stored, metadata: dict[str, str]) -> None:
        del self._waiting[name]
        if time.monotonic() < self._again:
            return
        own = {"version": VERSION, "name": name, "checksum": _checksum(arrays)}
        data = save(arrays, metadata | own)
        if len(data) > self.limit:
            return
        unfinished = self._folder / f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
        try:
            self._open_folder()  # an operator may have deleted it
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
            unfinished.replace(self._folder / (name + SUFFIX))
        except OSError:
            self._again = time.monotonic() + PAUSE
            raise
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

    def _load_all(self, names: Sequence[str], for_request: bool) -> list[Entry | None]:
        found = list(self._readers.map(self._load, names))
        if for_request:
            self.hits += sum(entry is not None for entry in found)
            self._use(names)
        return found

    def _find_newest(self, limit: int) -> list[str]:
        files = [file for file in cache_files(self._folder) if file.finished]
        sizes = {file.path.stem: file.size for file in files}
        found: dict[str, None] = {}
        for file in sorted(files, key=lambda file: file.used, reverse=True):
            chain: dict[str, None] = {}
            name = file.path.stem
            while name in sizes and name not in found and name not in chain:
                chain[name] = None
                name = self._needed_by(name)
            for name in reversed(chain):
                limit -= sizes[name]
                if limit < 0:
                    return list(found)
                found[name] = None
        return list(found)

    def _needed_by(self, name: str) -> str:
        with contextlib.suppress(SafetensorError, ValueError, OSError), self._opened(name) as file:
            return str((file.metadata() or {}).get("after", ""))
        return ""

    def _use(self, names: Sequence[str]) -> None:
        for name in names:
            # Where nothing can be written, what is there is read all the same.
            with contextlib.suppress(OSError):
                os.utime(self._folder / (name + SUFFIX), follow_symlinks=False)

    def _opened(self, name: str) -> Any:
        """The file, open for reading. Raises `ValueError` for anything else of this name, `SafetensorError` and
        `OSError`."""
        path = self._folder / (name + SUFFIX)
        if not stat.S_ISREG(path.lstat().st_mode):  # reading a pipe would block
            raise ValueError("it is no ordinary file")
        return safe_open(path, framework="numpy")

    def _load(self, name: str) -> Entry | None:
        path = self._folder / (name + SUFFIX)
        try:
            with self._opened(name) as file:
                metadata = file.metadata() or {}
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            if metadata.get("version") != VERSION or metadata.get("name") != name:
                raise ValueError("it belongs to something else")
            if metadata.get("checksum") != _checksum(arrays):
                raise ValueError("its checksum differs")
        except FileNotFoundError:
            return None
        except (SafetensorError, ValueError, OSError, MemoryError) as error:
            log.warning("dropped a file of the prefix cache: %s: %s", path.name, error)
            path.unlink(missing_ok=True)
            return None
        return Entry(arrays, metadata)

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
            file.path.unlink(missing_ok=True)
            self.bytes -= file.size


def _tell(done: "Future[Any]") -> None:
    """A full or vanished disk costs the cache, and not the server."""
    if isinstance(error := done.exception(), OSError):
        log.warning("the prefix cache's folder fails: %s", error.strerror)
    elif error is not None:
        raise error


def _checksum(arrays: Stored) -> str:
    """Tells damage, not forgery: the folder is the user's own."""
    found = 0
    for name in sorted(arrays):
        found = zlib.crc32(f"{name}{arrays[name].dtype}{arrays[name].shape}".encode(), found)
        found = zlib.crc32(np.ascontiguousarray(arrays[name]).data, found)
    return f"{found:08x}"


def fingerprint(folder: Path, *details: str) -> str:
    """A name for a model's files and all else (`details`) that shapes its caches, so that no other model uses them. The
    files' times count too, since a few rows of a matrix may have been changed in place."""
    times = [str(path.stat().st_mtime_ns) for path in sorted(folder.glob("*.safetensors"))]
    return digest_of(folder, VERSION, *times, *details)

"""The prefix cache's files in the folder of `cache_dir`, told apart from anything else that an operator keeps there.

The files are `FOLDER/<fingerprint of a model>/<digest of a prompt's blocks>[-state].safetensors`. Nothing else is ever
counted or deleted.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

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

    @property
    def may_go(self) -> bool:
        """Whether the file may be deleted. An unfinished file may still be written by a server, unless it is old."""
        return self.finished or time.time() - self.used > STALE_SECONDS


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


def delete(files: Iterable[CacheFile]) -> tuple[int, int]:
    """Delete files; returns their number and bytes. A server that wanted one gets a cache miss."""
    count = size = 0
    for file in files:
        if file.may_go:
            file.path.unlink(missing_ok=True)
            count, size = count + 1, size + file.size
    return count, size

"""The process that fetches one repository: `python -m pippin.catalog.hub_child JSON`.

Reports its progress and outcome on standard output, one JSON object a line (`Line` in download.py).
"""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

import msgspec
from huggingface_hub import HfApi, HfFileMetadata, constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import build_hf_headers, filter_repo_objects, get_session, hf_raise_for_status

from pippin.catalog.download import Download, Fetched, Line, Progressed, Refused, refused
from pippin.catalog.scan import hub_folder
from pippin.core.decoding import from_json

HASH: Final = re.compile(r"[A-Za-z0-9_-]{8,128}")
SHA256_DIGITS: Final = 64
PARTIAL_CONTENT: Final = 206


class TransferError(Exception):
    """The Hub sent something other than the file; a retry may help."""


class HubFiles:
    """The files of one repository at one commit, which are fetched into the Hub's cache and resume earlier attempts.

    The library's own download starts each file over in a new process, so of the library this takes HEAD, for hash and
    size, and then makes GET with a range itself, from the address that the Hub gives. The cache has the library's
    layout: blobs named by hash, and snapshots of links to them.
    """

    def __init__(self, wanted: Download, commit: str, root: Path) -> None:
        self._wanted, self._commit = wanted, commit
        self._blobs = root / "blobs"
        self._locks: dict[str, threading.Lock] = {}  # of the blobs
        self.snapshot = root / "snapshots" / commit
        self._blobs.mkdir(parents=True, exist_ok=True)
        self.snapshot.mkdir(parents=True, exist_ok=True)

    def fetch(self, name: str) -> None:
        """Place the file in the snapshot. Raises `HTTPError`, `TransferError` or `OSError`."""
        target = self.snapshot / name
        if target.exists():
            return
        remote = self._describe(name)
        blob = self._blobs / remote.etag
        # Files of the same content are one blob, which one thread fetches.
        with self._locks.setdefault(remote.etag, threading.Lock()):
            if not blob.exists():
                partial = self._blobs / f"{remote.etag}.incomplete"
                self._transfer(remote, partial)
                _verify(remote, partial)
                partial.replace(blob)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_symlink():
            target.unlink()
        target.symlink_to(os.path.relpath(blob, target.parent))

    def _describe(self, name: str) -> HfFileMetadata:
        address = hf_hub_url(self._wanted.repository, name, revision=self._commit)
        told = get_hf_file_metadata(address, timeout=self._wanted.timeout)
        if HASH.fullmatch(told.etag or "") is None or told.size is None or told.size < 0:
            raise TransferError("the Hub does not say the file's hash and size")
        return told

    def _transfer(self, remote: HfFileMetadata, partial: Path) -> None:
        with partial.open("ab") as file:
            begin = file.tell()
            if begin > remote.size:
                file.truncate(0)
                begin = 0
            if begin == remote.size:
                return
            # The token is for the Hub only.
            token = None if urlsplit(constants.ENDPOINT)[:2] == urlsplit(remote.location)[:2] else False
            headers = {"Range": f"bytes={begin}-", "Accept-Encoding": "identity"}
            with get_session().stream(
                "GET",
                remote.location,
                headers=build_hf_headers(token=token, headers=headers),
                timeout=self._wanted.timeout,
            ) as reply:
                hf_raise_for_status(reply)
                if reply.status_code != PARTIAL_CONTENT:
                    file.truncate(0)  # the range was ignored
                for chunk in reply.iter_raw():
                    file.write(chunk)
                    if file.tell() > remote.size:
                        raise TransferError("the Hub sends more than it said")


def safe_name(name: str) -> bool:
    """Whether a file's path stays inside the snapshot."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name and "\0" not in name


def _verify(remote: HfFileMetadata, partial: Path) -> None:
    """Raise `TransferError` unless the file is complete and correct; a wrong one is deleted."""
    size = partial.stat().st_size
    if size < remote.size:
        raise TransferError("the connection broke")
    if len(remote.etag) == SHA256_DIGITS:
        with partial.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == remote.etag:
                return
    elif size == remote.size:
        return
    partial.unlink()
    raise TransferError("what came has another hash than the file")


WANTED: Final = tuple(
    "*.safetensors *.json *.jinja *.txt *.model *.tiktoken *.spm *.yaml weights.npz voices.npz voices/*.wav".split()
)
"""The files that a model needs. No Python, no pickles (*.bin, *.pt, *.pth, *.ckpt), no archives."""

UNWANTED: Final = ("original/*", "*/original/*", "consolidated*.safetensors", "*.index.fp16.json")
WHISPER_WEIGHTS: Final = "weights.npz"  # for Whisper models without safetensors
CONNECTIONS: Final = 4
INTERVAL: Final = 0.5  # seconds between two reports
SPARE: Final = 256 * 1024**2  # bytes of disk to leave


class Fetch:
    """The download of one repository into the cache."""

    def __init__(self, wanted: Download) -> None:
        self._wanted = wanted
        self._root = hub_folder(Path(wanted.cache), wanted.repository)
        self._ended = threading.Event()

    def run(self) -> Fetched | Refused:
        name = self._wanted.repository
        try:
            with self._alone():
                return self._run()
        except HfHubHTTPError as error:
            return refused(error.response.status_code, error.response.headers, name)
        except (HTTPError, ConnectionError):
            return Refused("load_failed", f"The Hub cannot be reached to fetch {name}.", again=True)
        except (TransferError, ValueError, LookupError, TypeError, RecursionError) as error:
            # The library does not check what it reads.
            return Refused("load_failed", f"The download of {name} failed: {error}.", again=True)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            message = (
                f"Cannot write {name} to {self._wanted.cache}: {error.strerror or 'an input/output error'}."
            )
            return Refused("too_large" if full else "load_failed", message, again=False)

    def _run(self) -> Fetched | Refused:
        name = self._wanted.repository
        told = HfApi().model_info(name, files_metadata=True, timeout=self._wanted.timeout)
        commit, named = str(told.sha), {file.rfilename: file.size or 0 for file in told.siblings or ()}
        sizes = {name: named[name] for name in wanted(named, self._wanted.files)}
        if not commit.isalnum():
            return Refused("load_failed", f"The Hub does not name a commit of {name}.", again=True)
        if self._wanted.files:
            if not sizes:
                return Refused("model_not_found", f"{name} holds none of {self._wanted.files}.", again=False)
        elif any(file.endswith(".safetensors") for file in sizes):
            sizes.pop(WHISPER_WEIGHTS, None)
        elif WHISPER_WEIGHTS not in sizes:
            message = (
                f"The repository {name} holds no safetensors weights, so it cannot be served. Look for an MLX "
                "conversion, or import a GGUF file with `pippin import`."
            )
            return Refused("unsupported", message, again=False)
        total = sum(sizes.values())
        refusal = self._room(total)
        if refusal is not None:
            return refusal
        files = HubFiles(self._wanted, commit, self._root)
        reporter = threading.Thread(target=self._report, args=(total,), daemon=True)
        reporter.start()
        try:
            with ThreadPoolExecutor(CONNECTIONS) as pool:
                # Small files first, so that a half-downloaded model can be identified.
                for _ in pool.map(files.fetch, sorted(sizes, key=lambda file: sizes[file])):
                    pass
        finally:
            self._ended.set()
            reporter.join()
        # `main` points to the snapshot, as after a download by branch, now that the snapshot is complete.
        main = self._root / "refs" / "main"
        main.parent.mkdir(parents=True, exist_ok=True)
        main.write_text(commit)
        say(Progressed(total, total))
        return Fetched(str(files.snapshot))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Ensure that one process at a time fetches a repository; the next one finds the files in place."""
        locks = Path(self._wanted.cache) / ".locks" / self._root.name
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / "pippin.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _room(self, total: int) -> Refused | None:
        cache = Path(self._wanted.cache)
        cache.mkdir(parents=True, exist_ok=True)
        needed, free = max(0, total - self._present()) + SPARE, shutil.disk_usage(cache).free
        if needed <= free:
            return None
        message = (
            f"The model {self._wanted.repository} needs {needed / 1e9:.1f} GB more of disk in {cache}, where "
            f"{free / 1e9:.1f} GB are free. `pippin list` shows what is here, `pippin rm NAME` makes room."
        )
        return Refused("too_large", message, again=False)

    def _present(self) -> int:
        """Bytes received so far, in finished and unfinished files."""
        try:
            with os.scandir(self._root / "blobs") as blobs:
                return sum(blob.stat().st_blocks * 512 for blob in blobs)
        except OSError:
            return 0

    def _report(self, total: int) -> None:
        while not self._ended.wait(INTERVAL):
            say(Progressed(min(self._present(), total), total))


def wanted(names: Iterable[str], patterns: tuple[str, ...] = ()) -> list[str]:
    """The names that match one of these patterns, or by default those of files that a model needs. None leads out of
    the snapshot."""
    unwanted = () if patterns else UNWANTED
    found = filter_repo_objects(names, allow_patterns=patterns or WANTED, ignore_patterns=unwanted)
    return list(filter(safe_name, found))


def say(line: Line) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


def _leave_with_parent() -> None:
    """Exit at the end of standard input, which the parent holds open while it lives."""
    while os.read(0, 4096):
        pass
    os._exit(1)


def main() -> None:
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    say(Fetch(from_json(sys.argv[1], Download)).run())


if __name__ == "__main__":
    main()

"""The process that fetches one repository: `python -m pippin.catalog.hub_child JSON`.

Says on standard output, a line of JSON each, how far it is and how it ended (`Line` of download.py).
"""

import errno
import fnmatch
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Final

import httpx
import huggingface_hub
import msgspec
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from pippin.catalog.download import Download, Fetched, Line, Progressed, Refused
from pippin.catalog.scan import hub_folder

WANTED: Final = (
    "*.safetensors",
    "*.json",
    "*.jinja",
    "*.txt",
    "*.model",
    "*.tiktoken",
    "*.spm",
    "*.yaml",
)
"""What a model needs. No Python, no pickles (*.bin, *.pt, *.pth, *.ckpt), no archives."""

UNWANTED: Final = ("original/*", "*/original/*", "consolidated*.safetensors", "*.index.fp16.json")
INTERVAL: Final = 0.5  # seconds between two reports
SPARE: Final = 256 * 1024**2  # bytes of disk to leave


class Fetch:
    """One repository on its way into the cache."""

    def __init__(self, wanted: Download) -> None:
        self._wanted = wanted
        self._blobs = hub_folder(Path(wanted.cache), wanted.repository) / "blobs"
        self._ended = threading.Event()

    def run(self) -> Fetched | Refused:
        name = self._wanted.repository
        try:
            return self._run()
        except GatedRepoError:
            message = (
                f"The model {name} is gated: accept its terms on its page of the Hub, then put a token of your account "
                "into HF_TOKEN or run `hf auth login`."
            )
            return Refused("permission", message, again=False)
        except RepositoryNotFoundError:
            message = f"The Hub has no model {name}, or it is private and needs a token in HF_TOKEN."
            return Refused("model_not_found", message, again=False)
        except HfHubHTTPError as error:
            status = error.response.status_code
            message = f"The Hub answered {status} when asked for {name}."
            return Refused("load_failed", message, again=status >= 500 or status in (408, 429))
        except (LocalEntryNotFoundError, httpx.HTTPError):
            message = f"The Hub cannot be reached to fetch {name}."
            return Refused("load_failed", message, again=True)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            message = (
                f"Cannot write {name} to {self._wanted.cache}: {error.strerror or 'an input/output error'}."
            )
            return Refused(
                "too_large" if full else "load_failed", message, again=not full and error.errno is None
            )

    def _run(self) -> Fetched | Refused:
        timeout = min(self._wanted.timeout, 60.0)
        constants.HF_HUB_DOWNLOAD_TIMEOUT = timeout
        info = huggingface_hub.HfApi().model_info(
            self._wanted.repository, files_metadata=True, timeout=timeout
        )
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or [] if is_wanted(file.rfilename)}
        if not any(name.endswith(".safetensors") for name in sizes):
            message = (
                f"The repository {self._wanted.repository} holds no safetensors weights, so it cannot be served. Look "
                "for an MLX conversion, or import a GGUF file with `pippin import`."
            )
            return Refused("unsupported", message, again=False)
        total = sum(sizes.values())
        refusal = self._room(total)
        if refusal is not None:
            return refusal
        reporter = threading.Thread(target=self._report, args=(total,), daemon=True)
        reporter.start()
        try:
            folder = huggingface_hub.snapshot_download(
                self._wanted.repository,
                revision=info.sha,
                cache_dir=self._wanted.cache,
                allow_patterns=sorted(sizes),
                max_workers=4,
                etag_timeout=timeout,
            )
            self._point_main(str(info.sha))
        finally:
            self._ended.set()
            reporter.join()
        say(Progressed(total, total))
        return Fetched(folder)

    def _point_main(self, commit: str) -> None:
        """Name the snapshot `main`, as a download by branch would: only now, when all of it is there."""
        refs = self._blobs.parent / "refs"
        refs.mkdir(parents=True, exist_ok=True)
        (refs / "main").write_text(commit)

    def _room(self, total: int) -> Refused | None:
        cache = Path(self._wanted.cache)
        cache.mkdir(parents=True, exist_ok=True)
        needed, free = max(0, total - self._present()) + SPARE, shutil.disk_usage(cache).free
        if needed <= free:
            return None
        message = (
            f"The model {self._wanted.repository} needs {needed / 1e9:.1f} GB more of disk in {cache}, where "
            f"{free / 1e9:.1f} GB are free."
        )
        return Refused("too_large", message, again=False)

    def _present(self) -> int:
        """Bytes that have arrived, in finished and unfinished files."""
        try:
            with os.scandir(self._blobs) as blobs:
                return sum(blob.stat().st_blocks * 512 for blob in blobs)
        except OSError:
            return 0

    def _report(self, total: int) -> None:
        while not self._ended.wait(INTERVAL):
            say(Progressed(min(self._present(), total), total))


def is_wanted(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in WANTED) and not any(
        fnmatch.fnmatchcase(name, pattern) for pattern in UNWANTED
    )


def say(line: Line) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


def _leave_with_parent() -> None:
    """Wait for the end of standard input, which the parent holds open as long as it lives."""
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(1)


def main() -> None:
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    say(Fetch(msgspec.json.decode(sys.argv[1], type=Download)).run())


if __name__ == "__main__":
    main()

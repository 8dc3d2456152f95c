"""Fetches single files from the Hub into its cache, resuming earlier attempts.

The library's own download starts each file over in a new process, so this module speaks the Hub's protocol itself: HEAD
for hash and size, then GET with a range from the address that the Hub gives. The cache has the library's layout: blobs
named by hash, and snapshots of links to them.
"""

import hashlib
import os
import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import quote, urljoin, urlsplit

import httpx

MOST_REDIRECTS: Final = 5
HASH: Final = re.compile(r"[A-Za-z0-9_-]{8,128}")
SHA256_DIGITS: Final = 64


class TransferError(Exception):
    """The Hub sent something other than the file; a retry may help."""


@dataclass(frozen=True)
class Remote:
    """A file as described by HEAD."""

    address: str  # where its bytes are stored
    hash: str  # the blob's name; SHA-256 for large files
    size: int


class HubFiles:
    """The files of one repository at one commit."""

    def __init__(self, client: httpx.Client, endpoint: str, repository: str, commit: str, root: Path) -> None:
        self._client = client
        self._base = f"{endpoint}/{repository}/resolve/{quote(commit, safe='')}/"
        self._blobs = root / "blobs"
        self.snapshot = root / "snapshots" / commit
        self._blobs.mkdir(parents=True, exist_ok=True)
        self.snapshot.mkdir(parents=True, exist_ok=True)

    def fetch(self, name: str) -> None:
        """Place the file in the snapshot. Raises `httpx.HTTPError`, `TransferError` or `OSError`."""
        target = self.snapshot / name
        if target.exists():
            return
        remote = self._describe(self._base + quote(name))
        blob = self._blobs / remote.hash
        if not blob.exists():
            partial = self._blobs / f"{remote.hash}.incomplete"
            self._transfer(remote, partial)
            _verify(remote, partial)
            partial.replace(blob)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_symlink():
            target.unlink()
        target.symlink_to(os.path.relpath(blob, target.parent))

    def _describe(self, address: str) -> Remote:
        """Describe a file. Follows redirects within the Hub (renamed repositories); one that leaves it gives the bytes'
        address."""
        for _ in range(MOST_REDIRECTS):
            reply = self._client.head(
                address, headers={"Accept-Encoding": "identity"}, follow_redirects=False
            )
            target = urljoin(address, reply.headers.get("Location", ""))
            named = reply.headers.get("X-Linked-Etag")
            if reply.is_redirect and named is None and _same_host(address, target):
                address = target
                continue
            if not reply.is_redirect:
                reply.raise_for_status()
            digest = (named or reply.headers.get("ETag", "")).removeprefix("W/").strip('"')
            size = reply.headers.get("X-Linked-Size") or reply.headers.get("Content-Length", "")
            if HASH.fullmatch(digest) is None or not size.isdigit():
                raise TransferError("the Hub does not say the file's hash and size")
            return Remote(target if reply.is_redirect else address, digest, int(size))
        raise TransferError("the Hub redirects without end")

    def _transfer(self, remote: Remote, partial: Path) -> None:
        with partial.open("ab") as file:
            begin = file.tell()
            if begin > remote.size:
                file.truncate(0)
                begin = 0
            if begin == remote.size:
                return
            headers = {"Range": f"bytes={begin}-", "Accept-Encoding": "identity"}
            request = self._client.build_request("GET", remote.address, headers=headers)
            if not _same_host(self._base, remote.address):
                request.headers.pop("Authorization", None)  # the token is for the Hub only
            with closing(self._client.send(request, stream=True, follow_redirects=True)) as reply:
                reply.raise_for_status()
                if reply.status_code != httpx.codes.PARTIAL_CONTENT:
                    file.truncate(0)  # the range was ignored
                for chunk in reply.iter_raw():
                    file.write(chunk)
                    if file.tell() > remote.size:
                        raise TransferError("the Hub sends more than it said")


def safe_name(name: str) -> bool:
    """Whether a file's path stays inside the snapshot."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name and "\0" not in name


def _verify(remote: Remote, partial: Path) -> None:
    """Raise `TransferError` unless the file is complete and correct; a wrong one is deleted."""
    size = partial.stat().st_size
    if size < remote.size:
        raise TransferError("the connection broke")
    if len(remote.hash) == SHA256_DIGITS:
        with partial.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == remote.hash:
                return
    elif size == remote.size:
        return
    partial.unlink()
    raise TransferError("what came has another hash than the file")


def _same_host(one: str, other: str) -> bool:
    return urlsplit(one)[:2] == urlsplit(other)[:2]

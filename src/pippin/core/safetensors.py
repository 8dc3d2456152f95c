"""Reads the header of a safetensors file, which lists its arrays (https://github.com/huggingface/safetensors#format),
and digests a checkpoint's files."""

import hashlib
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import Struct

from pippin.core.decoding import convert, from_json

LARGEST_HEADER: Final = 64 * 1024**2  # bytes


class StoredArray(Struct, frozen=True):
    dtype: str  # such as "BF16"
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]  # byte range of the data, counted from the end of the header


class Header(Struct, frozen=True):
    arrays: dict[str, StoredArray]
    size: int  # bytes of the header, including the eight that hold its length
    metadata: dict[str, str]  # texts that the writer added

    @property
    def file_size(self) -> int:
        """Size that the whole file must have, in bytes."""
        return self.size + max((array.data_offsets[1] for array in self.arrays.values()), default=0)


def read_header(file: BinaryIO) -> Header | None:
    """The header of a file opened at its beginning; None if it is damaged. Raises `OSError`."""
    length = int.from_bytes(file.read(8), "little")
    if length > LARGEST_HEADER:
        return None
    try:
        listed = from_json(file.read(length), dict[str, Any])
        told = listed.pop("__metadata__", None)  # MLX writes null where there is nothing to tell
        texts = told.items() if isinstance(told, dict) else ()
        metadata = {name: text for name, text in texts if isinstance(text, str)}
        return Header(convert(listed, dict[str, StoredArray]), 8 + length, metadata)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


ENDS: Final = 1 << 16  # bytes


def digest_of(folder: Path, *details: str) -> str:
    """Identifies a folder's configuration and weights, plus `details`. Hashes each file's name, size and both ends,
    which hold the header and the last array. Reads at most 128 KiB of a file, however large. Raises `OSError`."""
    digest = hashlib.blake2b(digest_size=12)
    for detail in details:
        digest.update(detail.encode() + b"\0")
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        if path.exists():
            size = path.stat().st_size
            digest.update(f"{path.name} {size}".encode())
            with path.open("rb") as file:
                digest.update(file.read(ENDS))
                file.seek(max(size - ENDS, 0))
                digest.update(file.read(ENDS))
    return digest.hexdigest()

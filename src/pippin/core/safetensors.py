"""The header of a safetensors file, which lists its arrays (https://github.com/huggingface/safetensors#format), and a
digest of a checkpoint's files."""

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
    data_offsets: tuple[int, int]  # bytes from the end of the header: the first, and the one after the last


class Header(Struct, frozen=True):
    arrays: dict[str, StoredArray]
    size: int  # bytes of the header, with the eight that hold its length
    metadata: dict[str, str]  # texts that the writer added

    @property
    def file_size(self) -> int:
        """Bytes that the whole file must have."""
        return self.size + max((array.data_offsets[1] for array in self.arrays.values()), default=0)


def read_header(file: BinaryIO) -> Header | None:
    """The header of a file opened at its beginning; None where it is damaged. Raises `OSError`."""
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
    """A name for a folder's configuration and weights, and for `details`: sizes, and both ends of each file, which hold
    the header and the last array. Reads 128 KiB of a file, however large it is. Raises `OSError`."""
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

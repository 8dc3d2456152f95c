"""The header of a safetensors file, which lists its arrays (https://github.com/huggingface/safetensors#format)."""

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
        listed.pop("__metadata__", None)
        return Header(convert(listed, dict[str, StoredArray]), 8 + length)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None

"""Writes arrays one by one into safetensors files, without ever holding them all.

Format: https://github.com/huggingface/safetensors#format. The header precedes the data and contains its offsets, so
arrays are written after a gap, which is filled in at the end.
"""

import json
import struct
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from pippin.catalog.gguf.weights import WIDTH, StoredArray

SHARD_BYTES: Final = 5 * 1024**3
HEADER_BYTES: Final = 1024 * 1024  # size of the gap; the format pads headers with spaces


class SafetensorsWriter:
    """Writes `model.safetensors`, or numbered shards and an index if there is more than one shard's worth of data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shards: list[dict[str, Any]] = []
        self._file: BinaryIO | None = None
        self._written = 0
        self.total_bytes = 0

    def add(self, name: str, array: StoredArray) -> None:
        size = array.data.size * WIDTH[array.dtype]
        if self._file is None or (self._written and self._written + size > SHARD_BYTES):
            self._close_shard()
            self._file = self._spool(len(self._shards)).open("wb")
            self._file.seek(8 + HEADER_BYTES)
            self._shards.append({})
            self._written = 0
        np.ascontiguousarray(array.data).tofile(self._file)
        self._shards[-1][name] = {
            "dtype": array.dtype,
            "shape": list(array.shape),
            "data_offsets": [self._written, self._written + size],
        }
        self._written += size
        self.total_bytes += size

    def finish(self) -> None:
        """Write the last header, name the shards and write the index."""
        self._close_shard()
        count = len(self._shards)
        names = [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
        if count == 1:
            names = ["model.safetensors"]
        weight_map: dict[str, str] = {}
        for number, (shard, name) in enumerate(zip(self._shards, names, strict=True)):
            self._spool(number).rename(self._folder / name)
            weight_map.update(dict.fromkeys(shard, name))
        if count > 1:
            index = {"metadata": {"total_size": self.total_bytes}, "weight_map": weight_map}
            (self._folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))

    def close(self) -> None:
        """Close the file of an unfinished shard."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spool(self, number: int) -> Path:
        return self._folder / f"weights-{number}.part"

    def _close_shard(self) -> None:
        if self._file is None:
            return
        header = json.dumps(
            {"__metadata__": {"format": "mlx"}, **self._shards[-1]}, separators=(",", ":")
        ).encode()
        if len(header) > HEADER_BYTES:
            raise ValueError(f"a safetensors header of {len(header)} bytes outgrew its gap")
        self._file.seek(0)
        self._file.write(struct.pack("<Q", HEADER_BYTES) + header.ljust(HEADER_BYTES))
        self._file.flush()
        self._file.close()
        self._file = None

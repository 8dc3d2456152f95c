"""Arrays of a checkpoint that stay in its files until the kernels for CPUs pack them: through MLX they would be in
memory twice, and memory that was never used takes longer to fill than the files take to read."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from pippin.core.safetensors import Header

KINDS = {"U32": np.uint32, "U8": np.uint8, "BF16": np.uint16, "F16": np.float16, "F32": np.float32}
"""numpy's types by those of safetensors; it has bfloat16 as its bits."""


class FileArray(Struct, frozen=True):
    """An array of two dimensions or more in a file, of which rows, or one of several matrices, are read when asked
    for."""

    path: Path
    begin: int  # in the file
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def __getitem__(self, rows: slice | int) -> NDArray[Any]:
        first, last, _ = (slice(rows, rows + 1) if isinstance(rows, int) else rows).indices(self.shape[0])
        width = self.size // self.shape[0]
        begin = self.begin + first * width * self.dtype.itemsize
        # A file that has been cut off meanwhile gives too few, for which there is a ValueError here.
        found = np.fromfile(self.path, self.dtype, (last - first) * width, offset=begin)
        return found.reshape(self.shape[1:] if isinstance(rows, int) else (last - first, *self.shape[1:]))


class Files:
    """Which arrays, as MLX has just opened them, lie in which file. `named` tells them and the machine from others,
    where a trial that has passed is not to be repeated."""

    def __init__(self, named: str | None = None) -> None:
        self.named = named
        # With each array itself, so that no other gets its id.
        self._known: dict[int, tuple[mx.array, FileArray]] = {}

    def note(self, name: str, array: mx.array, path: Path, header: Header | None) -> None:
        told = None if header is None else header.arrays.get(name)
        if header is not None and told is not None and told.dtype in KINDS and len(told.shape) > 1:
            begin = header.size + told.data_offsets[0]
            own = FileArray(path, begin, np.dtype(KINDS[told.dtype]), told.shape)
            self._known[id(array)] = array, own

    def leave_out(self, model: nn.Module, *kinds: type) -> None:
        """Have these layers of a model hold what lies in files in the place of arrays that nobody has computed anew."""
        for module in model.modules():
            if type(module) in kinds:
                for name, array in module.items():
                    if name != "bias" and id(array) in self._known:
                        # MLX's own way to set it takes nothing but arrays.
                        dict.__setitem__(module, name, self._known.pop(id(array))[1])

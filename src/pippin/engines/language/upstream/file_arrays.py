"""Arrays of a checkpoint that stay in its files until the kernels for CPUs pack them: through MLX they would be in
memory twice, and memory that was never used takes longer to fill than the files take to read."""

from pathlib import Path
from typing import Any
from weakref import ref

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from pippin.core.safetensors import Header

KINDS = {"U32": np.uint32, "U8": np.uint8, "BF16": np.uint16, "F16": np.float16, "F32": np.float32}
"""numpy's types by those of safetensors; it has bfloat16 as its bits."""


class FileArray(Struct, frozen=True):
    """An array in a file, of which rows, or one of several matrices, are read when asked for."""

    path: Path
    begin: int  # in the file
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __getitem__(self, rows: slice | int) -> NDArray[Any]:
        first, last, _ = (slice(rows, rows + 1) if isinstance(rows, int) else rows).indices(self.shape[0])
        width = int(np.prod(self.shape[1:]))
        begin = self.begin + first * width * self.dtype.itemsize
        # A file that has been cut off meanwhile gives too few, for which there is a ValueError here.
        found = np.fromfile(self.path, self.dtype, (last - first) * width, offset=begin)
        return found.reshape(self.shape[1:] if isinstance(rows, int) else (last - first, *self.shape[1:]))


class Files(dict[int, tuple[ref[mx.array], FileArray]]):
    """Where arrays lie that MLX has opened, by their ids."""

    def note(self, array: mx.array, name: str, path: Path, header: Header) -> None:
        told = header.arrays[name]
        if told.dtype in KINDS:
            begin = header.size + told.data_offsets[0]
            self[id(array)] = ref(array), FileArray(path, begin, np.dtype(KINDS[told.dtype]), told.shape)

    def leave_out(self, model: nn.Module, *kinds: type) -> None:
        """Have these layers of a model hold what lies in files in the place of arrays that nobody has computed anew."""
        for module in (each for each in model.modules() if type(each) in kinds):
            for name, array in module.items():
                known, lies = self.get(id(array), (None, None))
                if name != "bias" and known is not None and known() is array:
                    # MLX's own way to set it takes nothing but arrays.
                    dict.__setitem__(module, name, lies)

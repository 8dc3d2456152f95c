"""Arrays of a checkpoint that stay in its files until the kernels for CPUs pack them: through MLX they would be in
memory twice, and memory that was never used takes longer to fill than the files take to read."""

from pathlib import Path
from typing import Any
from weakref import ref

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from pippin.core.safetensors import Header

KINDS = {"U32": np.uint32, "U8": np.uint8, "BF16": np.uint16, "F16": np.float16, "F32": np.float32}
"""numpy's types by those of safetensors; it has bfloat16 as its bits."""


class Files(dict[int, tuple[ref[mx.array], NDArray[Any]]]):
    """Arrays that MLX has opened, by their ids, as they lie in mapped files."""

    def note(self, arrays: dict[str, mx.array], path: Path, header: Header) -> None:
        """`arrays` are all those of a file."""
        memory = (
            np.memmap(path, np.uint8, "r", header.size) if header.file_size > header.size else np.empty(0)
        )
        for name, array in arrays.items():
            told = header.arrays[name]
            if told.dtype in KINDS:
                numbers = memory[slice(*told.data_offsets)].view(KINDS[told.dtype]).reshape(told.shape)
                self[id(array)] = ref(array), numbers

    def leave_out(self, model: nn.Module, *kinds: type) -> None:
        """Have these layers of a model hold what lies in files in the place of arrays that nobody has computed anew."""
        for module in (each for each in model.modules() if type(each) in kinds):
            for name, array in module.items():
                known, lies = self.get(id(array), (None, None))
                if name != "bias" and known is not None and known() is array:
                    # MLX's own way to set it takes nothing but arrays.
                    dict.__setitem__(module, name, lies)

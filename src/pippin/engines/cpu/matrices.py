"""Weights of MLX's layers in the layout of the kernels."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray
from pippin_kernels import Matrix

LINEARS = (nn.Linear, nn.QuantizedLinear)
EMBEDDINGS = (nn.Embedding, nn.QuantizedEmbedding)
BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
FLOATS4 = {"mxfp4": 32, "nvfp4": 16}  # columns of a group


def why_no_matrix(module: nn.Module) -> str | None:
    """Why the kernels cannot multiply with the weights of this layer, or None. Looks at no weight."""
    if type(module) not in (*LINEARS, *EMBEDDINGS):
        return f"it holds a layer of the class {type(module).__name__}"
    if type(module) in (nn.Linear, nn.Embedding):
        return None
    if module.mode in FLOATS4 and module.group_size == FLOATS4[module.mode]:
        return None
    if module.mode != "affine" or module.bits not in BITS or module.group_size not in GROUPS:
        return f"its weights are quantised as {module.mode} of {module.bits} bits in groups of {module.group_size}"
    return None


def matrix_of(module: Any, start: int = 0, stop: int | None = None) -> Matrix:
    """Rows from `start` to `stop` of a projection or an embedding."""
    rows = slice(start, stop)
    addend = floats(module.bias[rows]) if "bias" in module else None
    weight = _stored(module.weight[rows])
    if type(module) in (nn.Linear, nn.Embedding):
        return Matrix.dense(weight, addend=addend)
    scales = _stored(module.scales[rows])
    if module.mode in FLOATS4:
        return Matrix.float4(weight, scales, format=module.mode, addend=addend)
    biases = _stored(module.biases[rows])
    return Matrix.packed(weight, scales, biases, bits=module.bits, group=module.group_size, addend=addend)


def _stored(array: mx.array) -> NDArray[Any]:
    """The numbers as they are; numpy has no bfloat16, whose bits it is given."""
    return np.asarray(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def floats(array: mx.array) -> NDArray[np.float32]:
    return np.array(array.astype(mx.float32))

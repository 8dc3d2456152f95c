"""Weights of MLX's layers in the layout of the kernels."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from numpy.typing import NDArray
from pippin_kernels import Matrix, Stack

LINEARS = (nn.Linear, nn.QuantizedLinear)
EMBEDDINGS = (nn.Embedding, nn.QuantizedEmbedding)
STACKS = (SwitchLinear, QuantizedSwitchLinear)
"""Layers of a mixture's experts: a matrix for each of them."""

DENSE = (nn.Linear, nn.Embedding, SwitchLinear)
PACKED = (*LINEARS, *EMBEDDINGS, *STACKS)
BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
FLOATS4 = {"mxfp4": 32, "nvfp4": 16}  # columns of a group


def why_no_matrix(module: nn.Module) -> str | None:
    """Why the kernels cannot multiply with the weights of this layer, or None. Looks at no weight."""
    if type(module) not in PACKED:
        return f"it holds a layer of the class {type(module).__name__}"
    if type(module) in DENSE:
        return None
    # mlx-lm's layers of experts keep None for what their mode alone decides.
    if module.mode in FLOATS4 and module.group_size in (None, FLOATS4[module.mode]):
        return None
    if module.mode != "affine" or module.bits not in BITS or module.group_size not in GROUPS:
        return f"its weights are quantised as {module.mode} of {module.bits} bits in groups of {module.group_size}"
    return None


def stacks_of(experts: Any) -> dict[str, Stack]:
    """The matrices of all experts, by what they are for. Raises `ValueError` for weights that are damaged."""
    layers = {name: experts[f"{name}_proj"] for name in ("gate", "up", "down")}
    return {name: Stack.of(each.weight.shape[0], partial(matrix_of, each)) for name, each in layers.items()}


def matrix_of(module: Any, rows: slice | int = slice(None)) -> Matrix:
    """Some rows of a projection or an embedding, or one of several matrices. Raises `ValueError` for weights that are
    damaged."""
    addend = floats(module.bias[rows]) if "bias" in module else None
    weight = _stored(module.weight, rows)
    if type(module) in DENSE:
        return Matrix.dense(weight, addend=addend)
    scales = _stored(module.scales, rows)
    if module.mode in FLOATS4:
        return Matrix.float4(weight, scales, format=module.mode, addend=addend)
    biases = _stored(module.biases, rows)
    return Matrix.packed(weight, scales, biases, bits=module.bits, group=module.group_size, addend=addend)


def sizes(module: Any) -> tuple[int, int]:
    """Columns and rows of a projection: what goes in and what comes out."""
    rows, columns = module.weight.shape[-2:]
    if type(module) in DENSE:
        return columns, rows
    return columns * 32 // (4 if module.mode in FLOATS4 else module.bits), rows


@contextmanager
def widened(module: nn.Module) -> Iterator[None]:
    """Within this context, a layer's scales and dense weights are float32: with 16 bits, MLX takes a hundred times as
    long on a CPU."""
    stored = module.parameters()

    def wide(array: mx.array) -> mx.array:
        return array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array

    module.update(tree_map(wide, stored))
    try:
        yield
    finally:
        module.update(stored)


def _stored(array: mx.array | NDArray[Any], rows: slice | int) -> NDArray[Any]:
    """The numbers as they are; bfloat16, which numpy does not have, as its bits. What lies in a file is so already."""
    if isinstance(array, np.ndarray):
        return array[rows]
    return np.asarray((array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)[rows])


def floats(array: mx.array) -> NDArray[np.float32]:
    return np.array(array.astype(mx.float32))

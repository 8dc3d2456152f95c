"""Turns one GGUF tensor into the arrays that MLX loads for it, and writes these to files.

Q4_0, Q4_1 and Q8_0 become MLX's affine form (weight = scale * q + bias, groups of 32) exactly. F16 and BF16 are kept. A
float32 tensor is written in a 16-bit type if that loses nothing, else as float32. Everything else (Q5_0, K-quants,
I-quants, ...) is dequantised and rounded to `dense`.
"""

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal

import gguf
import numpy as np
from gguf import GGMLQuantizationType as TensorType
from msgspec import Struct
from numpy.typing import NDArray

Dtype = Literal["F32", "F16", "BF16", "U32"]
DenseType = Literal["float32", "float16", "bfloat16"]
GROUP: Final = 32
QUANTIZED_BITS: Final = {TensorType.Q4_0: 4, TensorType.Q4_1: 4, TensorType.Q8_0: 8}
STORED: Final[dict[DenseType, Dtype]] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
WIDTH: Final[dict[Dtype, int]] = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4}


class StoredArray(Struct, frozen=True):
    """An array for a safetensors file; bfloat16 is held as its uint16 bits."""

    data: NDArray[np.generic]
    dtype: Dtype
    shape: tuple[int, ...]


def quantized(
    raw: NDArray[np.uint8], tensor_type: TensorType, shape: tuple[int, ...]
) -> dict[str, StoredArray]:
    """`weight`, `scales` and `biases` of a Q4_0, Q4_1 or Q8_0 tensor, from its bytes, one row per row."""
    _, block_bytes = gguf.GGML_QUANT_SIZES[tensor_type]
    blocks = raw.reshape(-1, block_bytes)
    scales = blocks[:, :2].copy().view(np.float16)
    match tensor_type:
        case TensorType.Q4_1:
            biases = blocks[:, 2:4].copy().view(np.float16)
            packed = _pack_nibbles(blocks[:, 4:])
        case TensorType.Q4_0:
            biases = _times(scales, -8.0)
            packed = _pack_nibbles(blocks[:, 2:])
        case _:
            # Q8_0: its values are signed, MLX's are unsigned.
            biases = _times(scales, -128.0)
            packed = blocks[:, 2:] ^ np.uint8(0x80)
    if biases.dtype != scales.dtype:
        scales = scales.astype(biases.dtype)
    rows, columns = shape[:-1], shape[-1]
    bits = QUANTIZED_BITS[tensor_type]
    words = np.ascontiguousarray(packed).view("<u4")
    dtype: Dtype = "F16" if scales.dtype == np.float16 else "F32"
    groups = (*rows, columns // GROUP)
    return {
        "weight": StoredArray(words, "U32", (*rows, columns * bits // 32)),
        "scales": StoredArray(scales, dtype, groups),
        "biases": StoredArray(biases, dtype, groups),
    }


def _times(scales: NDArray[np.float16], factor: float) -> NDArray[np.floating]:
    """The product in float16 if that is exact (all but extreme scales), else in float32."""
    wide = scales.astype(np.float32) * np.float32(factor)
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float16)
    return narrow if np.array_equal(narrow.astype(np.float32), wide, equal_nan=True) else wide


def _pack_nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Repack 4-bit codes: GGUF stores values i and i + 16 in one byte, MLX values 2i and 2i + 1."""
    values = np.concatenate([codes & 0x0F, codes >> 4], axis=1)
    packed: NDArray[np.uint8] = values[:, 0::2] | (values[:, 1::2] << 4)
    return packed


def floats(raw: NDArray[np.uint8], tensor_type: TensorType, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The values of a tensor of any type, in float32."""
    values: NDArray[np.float32] = gguf.quants.dequantize(raw, tensor_type)
    return values.reshape(shape)


def dense(
    raw: NDArray[np.uint8], tensor_type: TensorType, shape: tuple[int, ...], target: DenseType
) -> StoredArray:
    """The array of a tensor that is not kept quantised."""
    match tensor_type:
        case TensorType.F16:
            return StoredArray(raw.view("<f2"), "F16", shape)
        case TensorType.BF16:
            return StoredArray(raw.view("<u2"), "BF16", shape)
        case TensorType.F32:
            return lossless(raw.view("<f4").reshape(shape), target)
        case _:
            return rounded(floats(raw, tensor_type, shape), target)


def rounded(values: NDArray[np.float32], target: DenseType) -> StoredArray:
    """The values, rounded to the nearest numbers of the target type."""
    match target:
        case "float32":
            return StoredArray(values.astype("<f4"), "F32", values.shape)
        case "float16":
            with np.errstate(over="ignore"):
                return StoredArray(values.astype("<f2"), "F16", values.shape)
        case "bfloat16":
            bits = np.ascontiguousarray(values).view(np.uint32).astype(np.uint64)
            bits += 0x7FFF + ((bits >> 16) & 1)  # to nearest, ties to even
            return StoredArray((bits >> 16).astype("<u2"), "BF16", values.shape)


def lossless(values: NDArray[np.float32], target: DenseType, stored_plus_one: bool = False) -> StoredArray:
    """Float32 values in the target type if every value survives, else in float32.

    A single float32 norm makes MLX compute in float32 from there on, which halves the speed of a 16-bit model on a GPU.
    With `stored_plus_one` the file holds each value plus one (Gemma's norms), and that sum must survive.
    """
    wanted = values - np.float32(1) if stored_plus_one else values
    candidate = rounded(wanted, target)
    data = candidate.data
    back = (
        (data.astype(np.uint32) << 16).view(np.float32) if candidate.dtype == "BF16" else data.astype("<f4")
    )
    same = back + np.float32(1) if stored_plus_one else back
    if np.array_equal(same, values):
        return candidate
    return StoredArray(wanted.astype("<f4"), "F32", values.shape)


ENTRY_BYTES: Final = 256  # more than an array takes in the header; the format pads headers with spaces


def write_safetensors(path: Path, arrays: Iterable[tuple[str, StoredArray]], most: int) -> None:
    """Write named arrays, of which there are at `most` so many, to one file.

    They come one by one, and are never all held. Format: https://github.com/huggingface/safetensors#format. The header
    precedes the data and contains its offsets, so arrays are written after a gap, which is filled in at the end.
    """
    room = ENTRY_BYTES * (most + 1)
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    written = 0
    with path.open("wb") as file:
        file.seek(8 + room)
        for name, array in arrays:
            np.ascontiguousarray(array.data).tofile(file)
            end = written + array.data.size * WIDTH[array.dtype]
            header[name] = {
                "dtype": array.dtype,
                "shape": list(array.shape),
                "data_offsets": [written, end],
            }
            written = end
        file.seek(0)
        file.write(struct.pack("<Q", room) + json.dumps(header, separators=(",", ":")).encode().ljust(room))

"""Pippin's kernels for CPUs: a thin binding of the C library beside this file. `c/pippin_kernels.h` describes it.

Weights are given as MLX stores them, as numpy arrays: packed words as uint32, scales and biases as float32, float16, or
bfloat16, which numpy lacks, as its bits in uint16.
"""

from pippin_kernels.binding import Kernels, instruction_sets, int8_sets, why_unavailable
from pippin_kernels.decoder import Decoder, Layer, Rope, Shape
from pippin_kernels.encoder import Encoder, EncoderLayer
from pippin_kernels.errors import KernelError
from pippin_kernels.kv import KV
from pippin_kernels.matrix import Matrix

__all__ = [
    "KV",
    "Decoder",
    "Encoder",
    "EncoderLayer",
    "KernelError",
    "Kernels",
    "Layer",
    "Matrix",
    "Rope",
    "Shape",
    "instruction_sets",
    "int8_sets",
    "why_unavailable",
]

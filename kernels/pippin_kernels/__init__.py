"""Pippin's kernels for CPUs: a thin binding of the C library beside this file. `c/pippin_kernels.h` describes it.

Weights are given as MLX stores them, as numpy arrays: packed words as uint32, scales and biases as float32, float16, or
bfloat16, which numpy lacks, as its bits in uint16.
"""

from pippin_kernels.binding import Kernels, Step, instruction_sets, int8_sets, why_unavailable
from pippin_kernels.decoder import PROJECTIONS, Addition, Decoder, Layer, Network, Projection, Rope, Shape
from pippin_kernels.errors import KernelError
from pippin_kernels.kv import KV, AnyKV, PackedKV, Places
from pippin_kernels.matrix import Experts, Matrix, Stack

__all__ = [
    "KV",
    "PROJECTIONS",
    "Addition",
    "AnyKV",
    "Decoder",
    "Experts",
    "KernelError",
    "Kernels",
    "Layer",
    "Matrix",
    "Network",
    "PackedKV",
    "Places",
    "Projection",
    "Rope",
    "Shape",
    "Stack",
    "Step",
    "instruction_sets",
    "int8_sets",
    "why_unavailable",
]

"""The tensor types of GGUF files: how many values share a block, and how many bytes a block takes."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class TensorType:
    name: str
    code: int  # in the file, and in the `gguf` library
    block: int  # values
    bytes: int  # per block


TENSOR_TYPES: Final = {
    kind.code: kind
    for kind in (
        TensorType("F32", 0, 1, 4),
        TensorType("F16", 1, 1, 2),
        TensorType("Q4_0", 2, 32, 18),
        TensorType("Q4_1", 3, 32, 20),
        TensorType("Q5_0", 6, 32, 22),
        TensorType("Q5_1", 7, 32, 24),
        TensorType("Q8_0", 8, 32, 34),
        TensorType("Q2_K", 10, 256, 84),
        TensorType("Q3_K", 11, 256, 110),
        TensorType("Q4_K", 12, 256, 144),
        TensorType("Q5_K", 13, 256, 176),
        TensorType("Q6_K", 14, 256, 210),
        TensorType("BF16", 30, 1, 2),
    )
}

"""Matrices that vectors are multiplied with, in blocks of 16 rows."""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from pippin_kernels.structures import BLOCK, CExperts, CMatrix

Array = NDArray[Any]

ALIGNMENT = 64  # bytes: a line of the cache
PIECE = 1 << 20  # bytes that a thread reads at a time: what it turns around is still in its cache then
TYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(np.uint16): 2}
BYTES = np.dtype(np.uint8)
Format = Literal["affine", "dense", "mxfp4", "nvfp4"]
Float4 = Literal["mxfp4", "nvfp4"]
FORMATS: tuple[Format, ...] = ("affine", "dense", "mxfp4", "nvfp4")
FLOAT4_GROUPS: dict[Float4, int] = {"mxfp4": 32, "nvfp4": 16}
BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A matrix [rows, columns] in the layout of the kernels. Made by `packed`, `float4` or `dense`, which check what
    they are given, so that the kernels never read beyond it."""

    weights: Array
    scales: Array | None
    biases: Array | None
    addend: NDArray[np.float32] | None
    rows: int
    columns: int
    format: Format
    bits: int
    group: int

    @classmethod
    def packed(
        cls, words: Array, scales: Array, biases: Array, *, bits: int, group: int, addend: Array | None = None
    ) -> Self:
        """From MLX's affine quantisation: words [rows, columns * bits / 32], scales and biases [rows, columns / group].
        `addend` [rows] is the bias of a linear layer. Raises `ValueError` for what cannot be such weights."""
        if bits not in BITS or group not in GROUPS:
            raise ValueError(f"weights of {bits} bits in groups of {group} are not known")
        if words.ndim != 2 or words.dtype != np.uint32:
            raise ValueError(
                f"packed weights are uint32 [rows, words], not {words.dtype} {list(words.shape)}"
            )
        rows, columns = words.shape[0], words.shape[1] * 32 // bits
        if rows == 0 or columns == 0 or columns % group or columns * bits != words.shape[1] * 32:
            raise ValueError(f"{words.shape[1]} words of {bits} bits are not whole groups of {group}")
        for name, array in (("scales", scales), ("biases", biases)):
            if array.shape != (rows, columns // group) or array.dtype != scales.dtype:
                raise ValueError(f"{name} {list(array.shape)} do not fit weights [{rows}, {columns}]")
            _refuse_unknown(name, array)
        return cls(
            weights=_blocked(words),
            scales=_blocked(scales, partial(_refuse_infinite, "scales")),
            biases=_blocked(biases, partial(_refuse_infinite, "biases")),
            addend=_padded(addend, rows),
            rows=rows,
            columns=columns,
            format="affine",
            bits=bits,
            group=group,
        )

    @classmethod
    def float4(cls, words: Array, scales: Array, *, format: Float4, addend: Array | None = None) -> Self:
        """From MLX's quantisations to floating-point numbers of 4 bits: words [rows, columns / 8], and scales uint8
        [rows, columns / 32] (mxfp4) or [rows, columns / 16] (nvfp4). Raises `ValueError` for what cannot be such."""
        group = FLOAT4_GROUPS[format]
        if words.ndim != 2 or words.dtype != np.uint32 or 0 in words.shape:
            raise ValueError(
                f"{format} weights are uint32 [rows, words], not {words.dtype} {list(words.shape)}"
            )
        rows, columns = words.shape[0], words.shape[1] * 8
        if columns % group or scales.shape != (rows, columns // group) or scales.dtype != BYTES:
            raise ValueError(
                f"scales {list(scales.shape)} of {scales.dtype} do not fit {format} weights [{rows}, {columns}]"
            )
        # In both, what is not a finite number has all bits set but for E4M3's sign.
        sign = 0 if format == "mxfp4" else 0x80

        def refuse(part: Array) -> None:
            if bool(np.any(part | sign == 0xFF)):
                raise ValueError("scales hold numbers that are not finite: the file is damaged")

        return cls(
            weights=_blocked(words),
            scales=_blocked(scales, refuse),
            biases=None,
            addend=_padded(addend, rows),
            rows=rows,
            columns=columns,
            format=format,
            bits=4,
            group=group,
        )

    @classmethod
    def dense(cls, weights: Array, *, addend: Array | None = None) -> Self:
        """From weights [rows, columns] as they are. Raises `ValueError` for what cannot be such."""
        if weights.ndim != 2 or 0 in weights.shape or weights.dtype not in TYPES:
            raise ValueError(f"dense weights {list(weights.shape)} of {weights.dtype} are not known")
        return cls(
            weights=_blocked(weights, partial(_refuse_infinite, "weights")),
            scales=None,
            biases=None,
            addend=_padded(addend, weights.shape[0]),
            rows=weights.shape[0],
            columns=weights.shape[1],
            format="dense",
            bits=weights.dtype.itemsize * 8,
            group=0,
        )

    @property
    def nbytes(self) -> int:
        arrays = (self.weights, self.scales, self.biases, self.addend)
        return sum(array.nbytes for array in arrays if array is not None)

    def structure(self) -> CMatrix:
        """As the library sees it; good as long as the matrix is held."""
        numbers = self.weights if self.format == "dense" else self.biases
        return CMatrix(
            address(self.weights),
            address(self.scales),
            address(self.biases),
            address(self.addend),
            self.rows,
            self.columns,
            *(
                0 if each is None else each.nbytes
                for each in (self.weights, self.scales, self.biases, self.addend)
            ),
            self.bits,
            self.group,
            0 if numbers is None else TYPES[numbers.dtype],
            FORMATS.index(self.format),
        )


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The networks of a mixture, of which a router chooses for each token: matrices of all of them, one behind the
    other."""

    router: Matrix | None  # None where others choose
    gate: "Stack"
    up: "Stack"
    down: "Stack"
    chosen: int  # networks that a token goes through
    normalized: bool = True  # the weights of those chosen are 1 together

    @property
    def hidden(self) -> int:
        return self.gate.matrix.columns

    @property
    def nbytes(self) -> int:
        parts = (self.router, self.gate.matrix, self.up.matrix, self.down.matrix)
        return sum(part.nbytes for part in parts if part is not None)

    def structure(self) -> CExperts:
        """As the library sees it; good as long as the experts are held. Raises `ValueError` for counts that differ."""
        counts = {self.gate.count, self.up.count, self.down.count}
        if self.router is not None:
            counts.add(self.router.rows)
        if len(counts) != 1:
            raise ValueError("a mixture has as many matrices as its router has rows")
        router = CMatrix() if self.router is None else self.router.structure()
        structures = (stack.matrix.structure() for stack in (self.gate, self.up, self.down))
        return CExperts(router, *structures, self.gate.count, self.chosen, self.normalized)


@dataclass(frozen=True)
class Stack:
    """As many matrices of one shape, one behind the other: `matrix` has the shape of one and the memory of all."""

    matrix: Matrix
    count: int

    @classmethod
    def of(cls, count: int, make: Callable[[int], Matrix]) -> Self:
        """`make` gives each of them. They lie there twice one at a time."""
        first = make(0)
        held = {name: getattr(first, name) for name in ("weights", "scales", "biases", "addend")}
        all_of = {
            name: None if array is None else aligned((count, *array.shape), array.dtype)
            for name, array in held.items()
        }
        for index in range(count):
            one = first if index == 0 else make(index)
            for name, whole in all_of.items():
                if whole is not None:
                    whole[index] = getattr(one, name)
        return cls(replace(first, **all_of), count)


def address(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Memory that begins with a line of the cache; whoever asks for it fills it."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _blocked(array: Array, refuse: Callable[[Array], None] = lambda part: None) -> Array:
    """[rows, n] as [blocks, n, 16], rows that miss being zero; `refuse` is shown each part."""
    rows, width = array.shape
    found = aligned((-(-rows // BLOCK), width, BLOCK), array.dtype)
    whole = rows // BLOCK
    step = max(1, PIECE // (BLOCK * width * array.dtype.itemsize))

    def fill(first: int) -> None:
        last = min(first + step, whole)
        part = array[first * BLOCK : last * BLOCK]
        refuse(part)
        found[first:last] = part.reshape(last - first, BLOCK, width).transpose(0, 2, 1)

    if whole > step:
        list(_threads().map(fill, range(0, whole, step)))
    elif whole:
        fill(0)
    if rows % BLOCK:
        rest = array[whole * BLOCK : rows]
        refuse(rest)
        found[whole] = 0
        found[whole, :, : rows % BLOCK] = rest.T
    return found


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count())


def _padded(addend: Array | None, rows: int) -> NDArray[np.float32] | None:
    if addend is None:
        return None
    if addend.shape != (rows,):
        raise ValueError(f"a bias {list(addend.shape)} does not fit {rows} rows")
    _refuse_unknown("bias", addend)
    _refuse_infinite("bias", addend)
    found = aligned((-(-rows // BLOCK) * BLOCK,), np.dtype(np.float32))
    found[:rows], found[rows:] = addend, 0
    return found


def _refuse_unknown(name: str, array: Array) -> None:
    if array.dtype not in TYPES:
        raise ValueError(f"{name} of {array.dtype} are not known")


def _refuse_infinite(name: str, array: Array) -> None:
    if array.dtype == np.float32:
        finite = bool(np.isfinite(array).all())
    else:  # of 16 bits: those of the exponent are all set in what is not finite
        exponent = 0x7C00 if array.dtype == np.float16 else 0x7F80
        finite = int((array.view(np.uint16) & 0x7FFF).max()) < exponent
    if not finite:
        raise ValueError(f"{name} hold numbers that are not finite: the file is damaged")

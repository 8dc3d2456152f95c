"""The library's functions, on numpy arrays."""

import ctypes as c
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pippin_kernels.errors import KernelError
from pippin_kernels.kv import AnyKV, Places
from pippin_kernels.matrix import Array, Experts, Matrix, address
from pippin_kernels.structures import (
    ABI,
    CAddition,
    CExperts,
    CMatrix,
    CRope,
    CShape,
    CStep,
)

Activation = Literal["silu", "gelu_tanh", "gelu", "swiglu_oai"]
ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu_tanh", "gelu", "swiglu_oai")

Floats = NDArray[np.float32]

P, I32, I64, F32 = c.c_void_p, c.c_int, c.c_int64, c.c_float
FUNCTIONS: dict[str, tuple[Any, ...]] = {  # what each gives, then what it takes
    "pk_abi": (I32,),
    "pk_refusal": (c.c_char_p,),
    "pk_instruction_set": (c.c_char_p, I32),
    "pk_int8_set": (c.c_char_p, I32),
    "pk_round_activations": (I32, P, c.c_char_p),
    "pk_whole_numbers": (I32, P, c.c_char_p),
    "pk_open": (P, I32, c.c_char_p),
    "pk_close": (None, P),
    "pk_used": (c.c_char_p, P),
    "pk_check": (I32, c.POINTER(CMatrix)),
    "pk_product": (I32, P, c.POINTER(CMatrix), P, I64, I64, P, I64),
    "pk_rows": (I32, c.POINTER(CMatrix), P, I64, P),
    "pk_rms_norm": (None, P, P, P, F32, I64, I64, P),
    "pk_layer_norm": (None, P, P, P, P, F32, I64, I64, P),
    "pk_gated": (None, P, I32, P, P, I64, P),
    "pk_rotate": (I32, c.POINTER(CRope), P, I64, I64, I64, P),
    "pk_attention": (I32, P, c.POINTER(CStep), P, I64, I64, I64, I64, P, F32, F32, P),
    "pk_mixture": (I32, P, c.POINTER(CExperts), I32, P, I64, P, P),
    "pk_decoder_open": (P, P, c.POINTER(CShape)),
    "pk_decoder_close": (None, P),
    "pk_decoder_adapt": (I32, P, I32, I32, c.POINTER(CAddition), I32),
    "pk_decoder_capture": (I32, P, P, I32),
    "pk_decoder_run": (I32, P, c.POINTER(CStep), P, P),
    "pk_decoder_layer": (I32, P, I32, c.POINTER(CStep), P),
}


@cache
def library() -> c.CDLL:
    """Raises `OSError` where the library was not built, or is not of this version."""
    found = c.CDLL(str(Path(__file__).with_name("libpippin_kernels.so")))
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    if found.pk_abi() != ABI:
        raise OSError("libpippin_kernels.so is of another version than its Python package: build it anew")
    return found


def why_unavailable() -> str | None:
    """Why the library cannot be used, or None."""
    try:
        library()
    except (OSError, AttributeError) as error:
        return str(error)
    return None


def instruction_sets() -> list[str]:
    """Those that this machine can run, best first."""
    found: list[str] = []
    while (name := library().pk_instruction_set(len(found))) is not None:
        found.append(name.decode())
    return found


def int8_sets() -> list[str]:
    """The ways in which this machine can multiply int8, best first."""
    found: list[str] = []
    while (name := library().pk_int8_set(len(found))) is not None:
        found.append(name.decode())
    return found


def check(result: Any) -> Any:
    """What a function gave, unless it refused. Raises `KernelError`."""
    if result is None or result == -1:
        raise KernelError(library().pk_refusal().decode())
    return result


class Kernels:
    """Threads and an instruction set. To be used by one thread at a time."""

    def __init__(self, threads: int, instruction_set: str | None = None) -> None:
        """`threads` counts the caller; `instruction_set` None takes the best. Raises `KernelError`."""
        name = None if instruction_set is None else instruction_set.encode()
        self.library = library()
        self._context: int | None = check(self.library.pk_open(threads, name))

    @property
    def context(self) -> int:
        if self._context is None:
            raise KernelError("The kernels were closed.")
        return self._context

    @property
    def instruction_set(self) -> str:
        name: bytes = self.library.pk_used(self.context)
        return name.decode()

    def round_activations(self, int8_set: str | None = None) -> None:
        """Round vectors that packed weights are multiplied with to int8 from here on, each 32 columns with a factor of
        their own: quicker, and not exact. `int8_set` None takes the best. Raises `KernelError`."""
        check(
            self.library.pk_round_activations(self.context, None if int8_set is None else int8_set.encode())
        )

    def whole_numbers(self, int8_set: str | None) -> None:
        """Compute products of packed weights with a few vectors by this one of the `int8_sets` from here on, in numbers
        of 23 bits, which is as exact as float32 and quicker; with None, in float32. Where the instruction set has such
        products, they are what it begins with. Raises `KernelError`."""
        check(self.library.pk_whole_numbers(self.context, None if int8_set is None else int8_set.encode()))

    def close(self) -> None:
        """End the threads. Doing so twice is doing so once."""
        if self._context is not None:
            self.library.pk_close(self._context)
            self._context = None

    def __del__(self) -> None:
        if getattr(self, "_context", None) is not None:
            self.close()

    def product(self, matrix: Matrix, x: Floats) -> Floats:
        """Of vectors [tokens, columns]: [tokens, rows]."""
        x = contiguous(x)
        if x.ndim != 2:
            raise KernelError("The vectors of a product are [tokens, columns].")
        out = np.empty((x.shape[0], matrix.rows), np.float32)
        self.product_into(matrix, x, out)
        return out

    def product_into(self, matrix: Matrix, x: Floats, out: Floats) -> None:
        """As `product`, into contiguous memory [tokens, rows]."""
        if x.shape[1:] != (matrix.columns,) or out.shape != (x.shape[0], matrix.rows):
            raise KernelError("The vectors of a product do not have the size of its matrix.")
        structure = matrix.structure()
        arguments = address(x), matrix.columns, x.shape[0], address(out), matrix.rows
        check(self.library.pk_product(self.context, structure, *arguments))

    def rows(self, matrix: Matrix, indexes: NDArray[np.int32]) -> Floats:
        """Rows of the matrix as numbers, [count, columns]."""
        indexes = np.ascontiguousarray(indexes, np.int32).reshape(-1)
        out = np.empty((indexes.size, matrix.columns), np.float32)
        check(self.library.pk_rows(matrix.structure(), address(indexes), indexes.size, address(out)))
        return out

    def rms_norm(self, x: Floats, weight: Floats | None, eps: float) -> Floats:
        x, weight, out = _normed(x, weight)
        self.library.pk_rms_norm(self.context, address(x), address(weight), eps, *_counted(x), address(out))
        return out

    def layer_norm(self, x: Floats, weight: Floats | None, bias: Floats | None, eps: float) -> Floats:
        x, weight, out = _normed(x, weight)
        _, bias, _ = _normed(x, bias)
        self.library.pk_layer_norm(
            self.context, address(x), address(weight), address(bias), eps, *_counted(x), address(out)
        )
        return out

    def gated(self, activation: Activation, gate: Floats, up: Floats) -> Floats:
        """activation(gate) * up"""
        gate, up = contiguous(gate), contiguous(up)
        if gate.shape != up.shape:
            raise KernelError("The two halves of a gated activation have one shape.")
        out = np.empty_like(gate)
        which = ACTIVATIONS.index(activation)
        self.library.pk_gated(self.context, which, address(gate), address(up), gate.size, address(out))
        return out

    def mixture(
        self, experts: Experts, activation: Activation, x: Floats, chosen: NDArray[np.int32] | None = None
    ) -> Floats:
        """Of vectors [tokens, hidden], what the experts that the router chooses give together: [tokens, hidden]. With
        `chosen` [tokens, k], what each of those named gives: [tokens, k, hidden]."""
        x = contiguous(x)
        if x.ndim != 2 or x.shape[1] != experts.hidden:
            raise KernelError("The vectors of a mixture do not have the size of its matrices.")
        if chosen is not None:
            chosen = np.ascontiguousarray(chosen, np.int32)
            if chosen.shape != (len(x), experts.chosen):
                raise KernelError("Each vector goes through as many experts as the mixture chooses.")
        out = np.empty(x.shape if chosen is None else (*chosen.shape, experts.hidden), np.float32)
        which = ACTIVATIONS.index(activation)
        arguments = experts.structure(), which, address(x), len(x), address(chosen), address(out)
        check(self.library.pk_mixture(self.context, *arguments))
        return out

    def attention(
        self,
        queries: Floats,
        kv: AnyKV,
        starts: Array,
        *,
        scale: float,
        window: int = 0,
        sinks: Floats | None = None,
        softcap: float = 0.0,
    ) -> Floats:
        """Of queries [slots, count, heads, head_dim] over a `KV`, in which their own keys and values lie already."""
        queries = contiguous(queries)
        slots, count, heads, dim = queries.shape
        if kv.sequences != slots or kv.heads[1] != dim:
            raise KernelError("The queries do not fit the keys.")
        sinks = None if sinks is None else contiguous(sinks)
        if sinks is not None and sinks.shape != (heads,):
            raise KernelError("There is a sink for each head.")
        step = Step(starts=starts, counts=[count] * slots, places=Places([[kv]]))
        out = np.empty_like(queries)
        shape = heads, kv.heads[0], dim, window, address(sinks), scale, softcap
        check(
            self.library.pk_attention(self.context, step.structure(), address(queries), *shape, address(out))
        )
        return out


class Step:
    """What a step adds to which sequences: `counts[i]` tokens to the `starts[i]` that sequence i has, and that lie in
    `places`. `adapters` has an entry for each sequence: 0 for none. The arrays of `places` are to be held meanwhile."""

    def __init__(
        self,
        *,
        starts: Sequence[int] | Array,
        counts: Sequence[int],
        places: Places,
        adapters: Sequence[int] | None = None,
    ) -> None:
        """Raises `KernelError` for parts that do not fit each other."""
        self.starts = np.array(starts, np.int64)
        self.counts = np.array(counts, np.int64)
        self.adapters = None if adapters is None else np.array(adapters, np.int32)
        sequences = len(self.starts)
        alike = self.adapters is None or self.adapters.shape == self.starts.shape
        if self.counts.shape != (sequences,) or places.sequences != sequences or not alike:
            raise KernelError("A step takes a start, a count, and keys and values for each sequence.")
        self.places = places

    @property
    def tokens(self) -> int:
        return int(self.counts.sum())

    def structure(self) -> CStep:
        """As the library sees it; good as long as the step is held."""
        parts = self.starts, self.counts, self.adapters, self.places.table
        return CStep(*(address(part) for part in parts), len(self.starts))


def contiguous(x: Array) -> Floats:
    return np.ascontiguousarray(x, np.float32)


def _normed(x: Array, weight: Array | None) -> tuple[Floats, Floats | None, Floats]:
    x = contiguous(x)
    if weight is not None:
        weight = contiguous(weight)
        if weight.shape != x.shape[-1:]:
            raise KernelError("The weights of a norm have the size of its vectors.")
    return x, weight, np.empty_like(x)


def _counted(x: Floats) -> tuple[int, int]:
    return x.size // x.shape[-1], x.shape[-1]

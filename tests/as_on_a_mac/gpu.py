"""Products and attention in 16 bits as a GPU computes them, on MLX's CPU.

A GPU sums in float32 and rounds once. Metal multiplies few rows by quantised weights in float32, and more rows by
weights that it dequantises to 16 bits first; dense products sum in another order where there are several rows. A CPU
computes each row alike, sums in 16 bits, and has no product of a mixture's experts (`gather_mm`) but in float32.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn

ROWS = 13
"""From so many rows on, Metal multiplies by weights in 16 bits: 6 to 33, as the chip and the sizes have it."""
ORDER = 1e-6
"""How much another order of additions in float32 changes a sum, relative to it."""

SUMMED = ((mx, "gather_mm"), (mx, "gather_qmm"), (mx, "quantized_matmul"))
ATTENTION = (mx.fast, "scaled_dot_product_attention")
"""Functions that sum in 16 bits on a CPU, or take float32 alone."""


class Gpu:
    """How products are computed. `seed` chooses a pattern of rounding."""

    def __init__(self, *, seed: int = 0, rows: int = ROWS, order: float = ORDER) -> None:
        self._uneven = rows, order
        self._first = seed
        self.begin()

    def begin(self, *, even: bool = False, seed: int | None = None) -> None:
        """Round as at first, or in another pattern; `even`: one row as several."""
        self._seed = (self._first if seed is None else seed) * 100_003
        self._drawn = 0
        self.rows, self.order = (sys.maxsize, 0.0) if even else self._uneven
        # Sums differ with the number of rows, and with how a prompt is cut, but for what float64 tells.
        self.sums_in = mx.float64 if even else mx.float32
        self._turns = False

    @contextmanager
    def rounds(self, seed: int) -> Iterator[None]:
        """In a pattern of its own for a while, in which one row is rounded otherwise than several, and scores that are
        as good as equal come in either order."""
        before = dict(vars(self))
        self.begin(seed=seed)
        self._turns = True
        try:
            yield
        finally:
            vars(self).update(before)

    def product(self, x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
        """x [..., inner] times dense weights [outer, inner]."""
        sums = x.astype(self.sums_in) @ weight.astype(self.sums_in).T
        return self._rounded(sums, x, bias, mx.result_type(x, weight))

    def quantized(self, layer: Any, x: mx.array) -> mx.array:
        """x [..., inner] times a layer's quantised weights."""
        form = {"group_size": layer.group_size, "bits": layer.bits, "mode": layer.mode}
        if layer.mode == "affine":
            scales, biases = layer.scales.astype(mx.float32), layer.biases.astype(mx.float32)
            weight = mx.dequantize(layer.weight, scales, biases, **form)
        else:
            weight = mx.dequantize(layer.weight, layer.scales, dtype=mx.float32, **form)
        if _count(x) >= self.rows:
            weight = weight.astype(x.dtype)
        bias = layer.bias if "bias" in layer else None
        return self._rounded(x.astype(self.sums_in) @ weight.astype(self.sums_in).T, x, bias, x.dtype)

    def turned(self, scores: mx.array) -> mx.array:
        """Scores by which some are chosen, of experts or of an index, each moved by half a step of bfloat16 at most."""
        return scores * self._noise(scores.shape, 2.0**-9) if self._turns else scores

    def _noise(self, shape: tuple[int, ...], most: float) -> mx.array:
        self._drawn += 1
        return 1 + most * mx.random.uniform(-1, 1, shape, key=mx.random.key(self._seed + self._drawn))

    def _rounded(self, sums: mx.array, x: mx.array, bias: mx.array | None, dtype: mx.Dtype) -> mx.array:
        if bias is not None:
            sums = sums + bias.astype(self.sums_in)
        if _count(x) > 1 and self.order:
            sums = sums * self._noise(sums.shape, self.order)
        return sums.astype(dtype)


def _count(x: mx.array) -> int:
    return x.size // x.shape[-1]


def _widely(own: Callable[..., mx.array], wide: Callable[[], mx.Dtype]) -> Callable[..., mx.array]:
    """A function of MLX that computes in such a type and rounds its result once, where it is given 16 bits."""

    def computed(*arrays: Any, **named: Any) -> mx.array:
        dtype = arrays[0].dtype
        if dtype == mx.float32 and all(_is_wide(each) for each in (*arrays, *named.values())):
            return own(*arrays, **named)
        into = wide() if _is_half(dtype) else dtype
        given = {name: _widened(each, into) for name, each in named.items()}
        return own(*(_widened(each, into) for each in arrays), **given).astype(dtype)

    return computed


def _is_wide(value: Any) -> bool:
    return not isinstance(value, mx.array) or not _is_half(value.dtype)


def _is_half(dtype: mx.Dtype) -> bool:
    return dtype in (mx.float16, mx.bfloat16)


def _widened(value: Any, wide: mx.Dtype) -> Any:
    return value if _is_wide(value) else value.astype(wide)


def compute_as_a_gpu(put: Callable[[Any, str, Any], None], gpu: Gpu) -> None:
    """Have MLX compute as the GPU. `put` sets attributes: `setattr`, or a monkeypatch's until the test ends."""

    def linear(layer: Any, x: mx.array) -> mx.array:
        return gpu.product(x, layer.weight, layer.bias if "bias" in layer else None)

    put(nn.Linear, "__call__", linear)
    put(nn.Embedding, "as_linear", lambda layer, x: gpu.product(x, layer.weight))
    put(nn.QuantizedLinear, "__call__", lambda layer, x: gpu.quantized(layer, x))
    put(nn.QuantizedEmbedding, "as_linear", lambda layer, x: gpu.quantized(layer, x))
    for owner, name in SUMMED:
        put(owner, name, _widely(getattr(owner, name), lambda: mx.float32))
    product = _widely(mx.matmul, lambda: gpu.sums_in)
    put(mx, "matmul", product)
    put(mx.array, "__matmul__", product)
    partition = mx.argpartition
    put(mx, "argpartition", lambda scores, *how, **named: partition(gpu.turned(scores), *how, **named))
    owner, name = ATTENTION
    put(owner, name, _widely(getattr(owner, name), lambda: gpu.sums_in))

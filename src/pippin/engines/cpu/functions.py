"""exp, sigmoid, erf, softmax and attention in float32 for MLX on CPUs of Linux.

MLX's kernels there compute exp, sigmoid, erf and softmax one number at a time, which is two thirds of the time of a
prompt of 256 tokens in SmolLM2, and more than half where Pippin's kernels compute its products alone. Here they are
made of additions and products, whose kernels are vectorised. exp is a polynomial and an addition to the bits of the
exponent (the method of `expf` in Cephes) and as exact as the library's. For large arrays numpy's exp is faster still
(`in_place.py`). `install` puts these functions into `mlx.core`, where models find them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from pippin.engines.cpu import in_place

Numbers = TypeVar("Numbers", mx.array, NDArray[np.float32])

LARGE = 8192
"""The least size of an array for which these functions save more time than building their operations costs."""

SHORT_CONTEXT = 256
"""For one query and up to this many keys, MLX's own attention is as fast."""

# The coefficients of 2 ** x for x from -0.5 to 0.5, by least squares at Chebyshev points: right to 1.5e-7.
POWERS = (
    1.000000071030,
    0.693146949161,
    0.240221217536,
    0.055507426160,
    0.009675459745,
    0.001326697039,
)
ROUNDING = 1.5 * 2**23
"""Added to a small float32, it leaves the nearest integer in the lowest bits."""

LEAST, MOST = -126.0, 126.0
"""The exponents of the powers of 2 that float32 holds as normal numbers."""

TO_BASE_2 = 1 / log(2)
MASKED = -1e9

# erf(x) = x P(x^2) / Q(x^2) up to ERF_REACH, beyond which it is 1 in float32. The fraction is right to 5e-8, and to
# 4e-7 when it is computed in float32. It was fitted by least squares whose weights follow the error.
ERF_REACH = 3.81
ERF_P = (
    1.128378987312317,
    0.18659450113773346,
    0.05116346478462219,
    0.0034757459070533514,
    2.3191486252471805e-4,
)
ERF_Q = (
    *(1.0, 0.4986967146396637, 0.11158120632171631, 0.014202415943145752, 0.0010370173258706927),
    *(2.374425093876198e-5, -1.1850239900468296e-7),
)


def exp2(x: mx.array) -> mx.array:
    """2 ** x for x from LEAST to MOST."""
    rounded = x + ROUNDING
    rest = x - (rounded - ROUNDING)
    power = _polynomial(POWERS, rest)
    whole = mx.left_shift(rounded.view(mx.int32), 23)
    return (power.view(mx.int32) + whole).view(mx.float32)


def exp(x: mx.array) -> mx.array:
    return exp2(mx.clip(x * TO_BASE_2, LEAST, MOST))


def sigmoid(x: mx.array) -> mx.array:
    if in_place.is_faster(x.size) and (found := in_place.sigmoid(x)) is not None:
        return found
    return 1 / (1 + exp2(mx.clip(x * -TO_BASE_2, LEAST, MOST)))


def erf(x: mx.array) -> mx.array:
    inside = mx.clip(x, -ERF_REACH, ERF_REACH)
    if in_place.is_faster(x.size) and (found := in_place.in_blocks(inside, _erf)) is not None:
        return found
    return _erf(inside)


def _erf(inside: Numbers) -> Numbers:
    square = inside * inside
    return inside * _polynomial(ERF_P, square) / _polynomial(ERF_Q, square)


def _polynomial(factors: tuple[float, ...], x: Numbers) -> Numbers:
    found = x * factors[-1] + factors[-2]
    for factor in factors[-3::-1]:
        found = found * x + factor
    return found


def softmax(x: mx.array, axis: int = -1) -> mx.array:
    if in_place.is_faster(x.size) and (found := in_place.softmax(x, axis)) is not None:
        return found
    powers = exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def attention(
    queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array | str | None
) -> mx.array:
    """Scaled dot product attention of queries [B, H, T, D] over keys and values [B, G, L, D]; H is a multiple of G."""
    rows, heads, count, size = queries.shape
    groups, length = keys.shape[1:3]
    many = in_place.is_faster(rows * heads * count * length)
    folded = (queries * (scale if many else scale * TO_BASE_2)).reshape(rows, groups, -1, size)
    scores = folded @ keys.swapaxes(-1, -2)
    if many:
        powers, sums = in_place.exp_and_sums(scores, mask, count)
    else:
        powers, sums = _exp2_and_sums(scores, mask, count)
    return (powers @ values / sums).reshape(rows, heads, count, values.shape[-1])


def _exp2_and_sums(scores: mx.array, mask: mx.array | str | None, count: int) -> tuple[mx.array, mx.array]:
    """2 ** (scores - their maximum over L) [B, G, R * T, L], and its sums over L [B, G, R * T, 1]."""
    rows, groups, _, length = scores.shape
    if mask is not None:
        heads = scores.reshape(rows, -1, count, length) + _mask_bias(mask, count, length)
        scores = heads.reshape(rows, groups, -1, length)
    powers = exp2(mx.maximum(scores - scores.max(-1, keepdims=True), LEAST))
    return powers, powers.sum(-1, keepdims=True)


def _mask_bias(mask: mx.array | str, count: int, length: int) -> mx.array:
    if isinstance(mask, str):
        mask = mx.arange(length) <= mx.arange(length - count, length)[:, None]
    return mx.where(mask, 0.0, MASKED) if mask.dtype == mx.bool_ else mask * TO_BASE_2


@dataclass(frozen=True)
class Elementwise:
    """An elementwise function of `mlx.core` that leaves large float32 arrays to the function `large`."""

    own: Callable[..., mx.array]
    large: Callable[..., mx.array]

    def __call__(self, x: Any, **options: Any) -> mx.array:
        if _large(x) and not options:
            return self.large(x)
        return self.own(x, **options)


@dataclass(frozen=True)
class Softmax:
    """`mx.softmax` that leaves large float32 arrays to `softmax`."""

    own: Callable[..., mx.array]

    def __call__(self, x: Any, axis: Any = None, **options: Any) -> mx.array:
        if _large(x) and isinstance(axis, int) and not options.keys() - {"precise"}:
            return softmax(x, axis)
        return self.own(x, axis, **options)


@dataclass(frozen=True)
class Attention:
    """`mx.fast.scaled_dot_product_attention` that leaves many float32 scores to `attention`."""

    own: Callable[..., mx.array]

    def __call__(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        *,
        scale: float,
        mask: mx.array | str | None = None,
        sinks: mx.array | None = None,
        **options: Any,
    ) -> mx.array:
        scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
        worth = scores >= LARGE and (q.shape[2] > 1 or k.shape[2] > SHORT_CONTEXT)
        if worth and q.dtype == k.dtype == v.dtype == mx.float32 and sinks is None and not options:
            return attention(q, k, v, scale, mask)
        return self.own(q, k, v, scale=scale, mask=mask, sinks=sinks, **options)


def _large(x: Any) -> bool:
    return isinstance(x, mx.array) and x.dtype == mx.float32 and x.size >= LARGE


def install() -> None:
    """Put these functions into `mlx.core` of this process. A second call does nothing."""
    if isinstance(mx.sigmoid, Elementwise):
        return
    core, fast = vars(mx), vars(mx.fast)
    core["sigmoid"] = Elementwise(mx.sigmoid, sigmoid)
    core["erf"] = Elementwise(mx.erf, erf)
    core["softmax"] = Softmax(mx.softmax)
    fast["scaled_dot_product_attention"] = Attention(mx.fast.scaled_dot_product_attention)

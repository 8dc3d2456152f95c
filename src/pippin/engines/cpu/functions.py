"""exp and its kin for float32 on a CPU, from operations that MLX's kernels for Linux compute many at a time.

Those kernels take exp, sigmoid, erf and softmax one number at a time, which is two thirds of the time of a prompt
of 256 tokens in SmolLM2. Here exp is a polynomial and an addition to the exponent's bits (the method of Cephes'
`expf`), as exact as the library's; for many numbers at once numpy's exp is quicker still (`in_place.py`). MLX
also takes the angles of rotary positions anew in each layer; here they are taken once for a step. `install` puts
these functions in place of `mlx.core`'s own, where models look them up.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import log
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from pippin.engines.cpu import in_place

Numbers = TypeVar("Numbers", mx.array, NDArray[np.float32])

SMALL = 8192  # numbers: below, building the operations costs more than it saves
TURNS = 8  # kept: models have one or two kinds of rotary positions, and a step asks for one place of each
FEW = 256  # earlier tokens: up to as many, MLX's own attention is as quick for single queries
POWERS = (  # of 2 to the power of -0.5 to 0.5, least squares at Chebyshev's points: right to 1.5e-7
    1.000000071030,
    0.693146949161,
    0.240221217536,
    0.055507426160,
    0.009675459745,
    0.001326697039,
)
ROUNDING = 1.5 * 2**23  # added to a small float, leaves the nearest integer in the lowest bits
LEAST, MOST = -126.0, 126.0  # powers of 2 that float32 holds
TO_BASE_2 = 1 / log(2)
MASKED = -1e9
# erf(x) = x P(x^2) / Q(x^2) up to ERF_REACH, where float32 makes it 1: right to 5e-8, and to 4e-7 in float32. Fitted by
# least squares whose weights follow the error.
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
    """2 to the power of `x`, which lies within LEAST and MOST."""
    rounded = x + ROUNDING
    rest = x - (rounded - ROUNDING)
    power = _polynomial(POWERS, rest)
    whole = mx.left_shift(rounded.view(mx.int32), 23)
    return (power.view(mx.int32) + whole).view(mx.float32)


def exp(x: mx.array) -> mx.array:
    return exp2(mx.clip(x * TO_BASE_2, LEAST, MOST))


def sigmoid(x: mx.array) -> mx.array:
    if in_place.pays(x.size) and (found := in_place.sigmoid(x)) is not None:
        return found
    return 1 / (1 + exp2(mx.clip(x * -TO_BASE_2, LEAST, MOST)))


def erf(x: mx.array) -> mx.array:
    inside = mx.clip(x, -ERF_REACH, ERF_REACH)
    if in_place.pays(x.size) and (found := in_place.in_blocks(inside, _erf)) is not None:
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
    if in_place.pays(x.size) and (found := in_place.softmax(x, axis)) is not None:
        return found
    powers = exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def attention(
    queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array | str | None
) -> mx.array:
    """Scaled dot product attention of queries [B, H, T, D] over keys and values [B, G, L, D], H a multiple of G."""
    rows, heads, count, size = queries.shape
    groups, length = keys.shape[1:3]
    many = in_place.pays(rows * heads * count * length)
    folded = (queries * (scale if many else scale * TO_BASE_2)).reshape(rows, groups, -1, size)
    scores = folded @ keys.swapaxes(-1, -2)
    if many:
        powers, sums = in_place.softened(scores, mask, count)
    else:
        powers, sums = _softened(scores, mask, count)
    return (powers @ values / sums).reshape(rows, heads, count, values.shape[-1])


def _softened(scores: mx.array, mask: mx.array | str | None, count: int) -> tuple[mx.array, mx.array]:
    """2 to the power of scores [B, G, R * T, L] less the greatest of their row, and the sums [B, G, R * T, 1]."""
    rows, groups, _, length = scores.shape
    if mask is not None:
        heads = scores.reshape(rows, -1, count, length) + _bias(mask, count, length)
        scores = heads.reshape(rows, groups, -1, length)
    powers = exp2(mx.maximum(scores - scores.max(-1, keepdims=True), LEAST))
    return powers, powers.sum(-1, keepdims=True)


def _bias(mask: mx.array | str, count: int, length: int) -> mx.array:
    if isinstance(mask, str):
        mask = mx.arange(length) <= mx.arange(length - count, length)[:, None]
    return mx.where(mask, 0.0, MASKED) if mask.dtype == mx.bool_ else mask * TO_BASE_2


@dataclass(frozen=True)
class Turn:
    """Cosines and sines that a rotary embedding multiplies with, and what they were made from."""

    cosines: mx.array  # [T, dims] or [B, 1, T, dims]
    sines: mx.array
    sources: tuple[Any, ...]  # held, so that nothing else comes to have their ids


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of two halves (`traditional` or of other types: MLX's own)."""

    own: Callable[..., mx.array]
    promised: WeakValueDictionary[int, mx.array] = field(default_factory=WeakValueDictionary)
    """Arrays of positions that will not be changed in place, by their ids."""
    _turns: dict[tuple[Any, ...], Turn] = field(default_factory=dict)

    def steady(self, positions: mx.array) -> mx.array:
        """Take the promise that `positions` will not be changed in place, and give the array itself."""
        self.promised[id(positions)] = positions
        return positions

    def __call__(self, x: mx.array, dims: int, **options: Any) -> mx.array:
        offset = options.get("offset")
        known = isinstance(offset, int) or (x.ndim == 4 and self.promised.get(id(offset)) is offset)
        if options.get("traditional") or not known or x.dtype != mx.float32 or options.get("stream"):
            return self.own(x, dims, **options)
        turn = self._turn(x.shape[-2], dims, options["base"], options["scale"], offset, options.get("freqs"))
        turned = x[..., :dims]
        half = dims // 2
        swapped = mx.concatenate([turned[..., half:], turned[..., :half]], axis=-1)
        turned = turned * turn.cosines + swapped * turn.sines
        return turned if dims == x.shape[-1] else mx.concatenate([turned, x[..., dims:]], axis=-1)

    def _turn(
        self, count: int, dims: int, base: float | None, scale: float, offset: Any, freqs: mx.array | None
    ) -> Turn:
        start = offset if isinstance(offset, int) else id(offset)
        key = count, dims, base, scale, isinstance(offset, int), start, id(freqs)
        found = self._turns.get(key)
        if found is None:
            if len(self._turns) >= TURNS:
                self._turns.pop(next(iter(self._turns)))
            found = self._turns[key] = _new_turn(count, dims, base, scale, offset, freqs)
        return found


def _new_turn(
    count: int, dims: int, base: float | None, scale: float, offset: Any, freqs: mx.array | None
) -> Turn:
    starts = offset if isinstance(offset, int) else offset[:, None, None]
    positions = (mx.arange(count, dtype=mx.float32) + starts) * scale
    if freqs is None:
        assert base is not None
        speeds = mx.exp(mx.arange(dims // 2, dtype=mx.float32) * (-log(base) / (dims // 2)))
    else:
        speeds = 1 / freqs
    angles = positions[..., None] * speeds
    cosines, sines = mx.cos(angles), mx.sin(angles)
    return Turn(
        mx.concatenate([cosines, cosines], axis=-1), mx.concatenate([-sines, sines], axis=-1), (offset, freqs)
    )


def steady(positions: mx.array) -> mx.array:
    """Promise that `positions` will not be changed in place, so that the rotation that follows from it can be kept.

    Gives the array itself. Where MLX's own rotary embedding is in place, nothing is remembered.
    """
    rope = mx.fast.rope
    return rope.steady(positions) if isinstance(rope, Rope) else positions


@dataclass(frozen=True)
class Elementwise:
    """A function of `mlx.core` that leaves large float32 arrays to another."""

    own: Callable[..., mx.array]
    large: Callable[..., mx.array]

    def __call__(self, x: Any, **options: Any) -> mx.array:
        if _large(x) and not options:
            return self.large(x)
        return self.own(x, **options)


@dataclass(frozen=True)
class Softmax:
    own: Callable[..., mx.array]

    def __call__(self, x: Any, axis: Any = None, **options: Any) -> mx.array:
        if _large(x) and isinstance(axis, int) and not options.keys() - {"precise"}:
            return softmax(x, axis)
        return self.own(x, axis, **options)


@dataclass(frozen=True)
class Attention:
    own: Callable[..., mx.array]

    def __call__(self, q: mx.array, k: mx.array, v: mx.array, *, scale: float, **options: Any) -> mx.array:
        mask = options.get("mask")
        given = {name for name, value in options.items() if value is not None} - {"mask"}
        scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
        worth = scores >= SMALL and (q.shape[2] > 1 or k.shape[2] > FEW)
        if worth and q.dtype == k.dtype == v.dtype == mx.float32 and not given:
            return attention(q, k, v, scale, mask)
        return self.own(q, k, v, scale=scale, **options)


def _large(x: Any) -> bool:
    return isinstance(x, mx.array) and x.dtype == mx.float32 and x.size >= SMALL


def install() -> None:
    """Let models of this process use these functions. Doing so twice is doing so once."""
    if isinstance(mx.sigmoid, Elementwise):
        return
    core, fast = vars(mx), vars(mx.fast)
    core["sigmoid"] = Elementwise(mx.sigmoid, sigmoid)
    core["erf"] = Elementwise(mx.erf, erf)
    core["softmax"] = Softmax(mx.softmax)
    fast["rope"] = Rope(mx.fast.rope)
    fast["scaled_dot_product_attention"] = Attention(mx.fast.scaled_dot_product_attention)

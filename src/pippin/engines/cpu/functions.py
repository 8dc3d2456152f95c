"""exp, sigmoid, erf, softmax and attention in float32 for MLX on CPUs of Linux.

MLX's kernels there compute exp, sigmoid, erf and softmax one number at a time, which is two thirds of the time of a
prompt of 256 tokens in SmolLM2, and more than half where Pippin's kernels compute its products alone. numpy computes
large arrays of them at once, in the memory of MLX's arrays, where it has a vectorised exp (x86 with AVX2 or AVX-512).
The array has to be evaluated first, which costs a tenth of a millisecond. `install` puts these functions into
`mlx.core`, where models find them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

LARGE: Final = 1 << 16
"""The least size of an array for which numpy is faster than MLX (measured)."""

BLOCK: Final = 1 << 16
"""How many float32 are computed at a time: as many as stay in a core's cache from one pass over them to the next."""

MASKED: Final = np.float32(-1e9)
"""The score of a masked position, whose exp is 0."""

# erf(x) = x P(x^2) / Q(x^2) up to ERF_REACH, beyond which it is 1 in float32. The fraction is right to 5e-8, and to
# 4e-7 when it is computed in float32. It was fitted by least squares whose weights follow the error.
ERF_REACH: Final = 3.81
ERF_P: Final = (
    1.128378987312317,
    0.18659450113773346,
    0.05116346478462219,
    0.0034757459070533514,
    2.3191486252471805e-4,
)
ERF_Q: Final = (
    *(1.0, 0.4986967146396637, 0.11158120632171631, 0.014202415943145752, 0.0010370173258706927),
    *(2.374425093876198e-5, -1.1850239900468296e-7),
)


HAS_VECTOR_EXP: Final = any(
    not each["current"].startswith("baseline")
    for types in np.lib.introspect.opt_func_info(func_name="^exp$", signature="float32").values()
    for each in types.values()
)
"""Whether numpy has a vectorised exp that this machine can run."""


def writable_memory(array: mx.array) -> NDArray[np.float32] | None:
    """Evaluate an array that has no other user, and return its memory to be written into.

    None for an array that is not contiguous, such as a broadcast one, whose elements may share memory.
    """
    mx.eval(array)
    memory = np.asarray(array)
    return memory if memory.flags.c_contiguous and memory.flags.writeable else None


def exp_and_sums(scores: mx.array, mask: mx.array | str | None, count: int) -> tuple[mx.array, mx.array]:
    """exp(scores - their maximum over L), in the memory of `scores`, and its sums over L.

    Scores are [B, G, R * T, L] and sums [B, G, R * T, 1]: B sequences, G KV heads, R query heads for each of them, T
    queries (`count`) and L keys. The mask is [B, H, T, L] with H = G * R, or broadcasts to that.
    """
    memory = writable_memory(scores)
    # The result of a matrix product is contiguous.
    assert memory is not None
    *outer, _, length = memory.shape
    if mask is not None:
        _apply_mask(memory.reshape(*outer, -1, count, length), mask)
    rows = memory.reshape(-1, length)
    sums = np.empty((len(rows), 1), np.float32)
    height = max(1, BLOCK // length)
    for start in range(0, len(rows), height):
        block = rows[start : start + height]
        block -= block.max(-1, keepdims=True)
        np.exp(block, out=block)
        block.sum(-1, keepdims=True, out=sums[start : start + height])
    return scores, mx.array(sums.reshape(*memory.shape[:-1], 1))


def _apply_mask(scores: NDArray[np.float32], mask: mx.array | str) -> None:
    """Make masked scores of [B, G, R, T, L] so small that their exp is 0."""
    count, length = scores.shape[-2:]
    # A causal mask hides nothing before the last `count` keys.
    if isinstance(mask, str):
        scores[..., length - count :] += np.where(np.tri(count, dtype=bool), np.float32(0), MASKED)
        return
    given = np.asarray(mask if mask.dtype == mx.bool_ else mask.astype(mx.float32))
    # The axis of heads [H] becomes [G, R]; an axis that broadcasts becomes [1, 1].
    if given.ndim > 2:
        heads = (1, 1) if given.shape[-3] == 1 else scores.shape[1:3]
        given = given.reshape(*given.shape[:-3], *heads, *given.shape[-2:])
    if given.dtype == bool:
        np.copyto(scores, MASKED, where=~given)
    else:
        scores += np.maximum(given, MASKED)


def in_blocks(
    array: mx.array, function: Callable[[NDArray[np.float32]], NDArray[np.float32]]
) -> mx.array | None:
    """Apply an elementwise function to an array that has no other user, block by block, in its own memory.

    None for an array whose memory can't be written into.
    """
    memory = writable_memory(array)
    if memory is None:
        return None
    flat = memory.reshape(-1)
    with np.errstate(over="ignore"):
        for start in range(0, flat.size, BLOCK):
            block = flat[start : start + BLOCK]
            block[:] = function(block)
    return array


def exp(x: mx.array) -> mx.array | None:
    """exp(x), or None where a new array can't be written into."""
    return in_blocks(x + 0, np.exp)


def sigmoid(x: mx.array) -> mx.array | None:
    """1 / (1 + exp(-x)), or None where a new array can't be written into."""
    # exp may overflow to infinity, whose reciprocal is the right limit, 0.
    return in_blocks(-x, lambda negative: np.reciprocal(np.exp(negative) + np.float32(1)))


def erf(x: mx.array) -> mx.array | None:
    """The error function, or None where a new array can't be written into."""
    return in_blocks(mx.clip(x, -ERF_REACH, ERF_REACH), _erf)


def _erf(inside: NDArray[np.float32]) -> NDArray[np.float32]:
    square = inside * inside
    return inside * _polynomial(ERF_P, square) / _polynomial(ERF_Q, square)


def _polynomial(factors: tuple[float, ...], x: NDArray[np.float32]) -> NDArray[np.float32]:
    found = x * np.float32(factors[-1]) + np.float32(factors[-2])
    for factor in factors[-3::-1]:
        found = found * x + np.float32(factor)
    return found


def softmax(x: mx.array, axis: int) -> mx.array | None:
    """softmax over one axis, or None where a new array can't be written into."""
    found = x - x.max(axis, keepdims=True)
    memory = writable_memory(found)
    if memory is None:
        return None
    np.exp(memory, out=memory)
    memory /= memory.sum(axis, keepdims=True)
    return found


LOGITS = 1 << 14
"""Fewer numbers than nearly all vocabularies have: draws of a row are computed alike alone and beside others."""


def attention(
    queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array | str | None
) -> mx.array:
    """Scaled dot product attention of queries [B, H, T, D] over keys and values [B, G, L, D]; H is a multiple of G."""
    rows, heads, count, size = queries.shape
    groups = keys.shape[1]
    folded = (queries * scale).reshape(rows, groups, -1, size)
    powers, sums = exp_and_sums(folded @ keys.swapaxes(-1, -2), mask, count)
    return (powers @ values / sums).reshape(rows, heads, count, values.shape[-1])


class Elementwise(Struct, frozen=True):
    """An elementwise function of `mlx.core` that leaves large float32 arrays to `large`, which may give None."""

    own: Callable[..., mx.array]
    large: Callable[[mx.array], mx.array | None]
    least: int = LARGE

    def __call__(self, x: Any, **options: Any) -> mx.array:
        found = self.large(x) if _is_large(x, self.least) and not options else None
        return self.own(x, **options) if found is None else found


class Softmax(Struct, frozen=True):
    """`mx.softmax` that leaves large float32 arrays to numpy."""

    own: Callable[..., mx.array]

    def __call__(self, x: Any, axis: Any = None, **options: Any) -> mx.array:
        known = _is_large(x) and isinstance(axis, int) and not options.keys() - {"precise"}
        found = softmax(x, axis) if known else None
        return self.own(x, axis, **options) if found is None else found


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
        worth = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] >= LARGE
        if worth and q.dtype == k.dtype == v.dtype == mx.float32 and sinks is None and not options:
            return attention(q, k, v, scale, mask)
        return self.own(q, k, v, scale=scale, mask=mask, sinks=sinks, **options)


def _is_large(x: Any, least: int = LARGE) -> bool:
    return isinstance(x, mx.array) and x.dtype == mx.float32 and x.size >= least


def install() -> None:
    """Put these functions into `mlx.core` of this process, if numpy is quicker here. A second call does nothing."""
    if not HAS_VECTOR_EXP or isinstance(mx.sigmoid, Elementwise):
        return
    core, fast = vars(mx), vars(mx.fast)
    core["exp"] = Elementwise(mx.exp, exp, LOGITS)
    core["sigmoid"] = Elementwise(mx.sigmoid, sigmoid)
    core["erf"] = Elementwise(mx.erf, erf)
    core["softmax"] = Softmax(mx.softmax)
    fast["scaled_dot_product_attention"] = Attention(mx.fast.scaled_dot_product_attention)

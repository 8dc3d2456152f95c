"""What numpy does faster than MLX in the memory of MLX arrays: exp and erf.

Where numpy has a vectorised exp (x86 with AVX2 or AVX-512), it computes many numbers at once, as MLX does not. The
array has to be evaluated first, which costs a tenth of a millisecond, so this is for large arrays alone.
"""

from collections.abc import Callable
from typing import Final

import mlx.core as mx
import numpy as np
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


def has_vector_exp() -> bool:
    """Whether numpy has a vectorised exp that this machine can run."""
    found = np.lib.introspect.opt_func_info(func_name="^exp$", signature="float32")
    return any(
        not each["current"].startswith("baseline") for types in found.values() for each in types.values()
    )


HAS_VECTOR_EXP: Final = has_vector_exp()


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
    return in_blocks(-x, _logistic)


def _logistic(negative: NDArray[np.float32]) -> NDArray[np.float32]:
    # exp may overflow to infinity, whose reciprocal is the right limit, 0.
    return np.reciprocal(np.exp(negative) + np.float32(1))


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

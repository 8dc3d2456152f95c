"""exp by numpy, in the memory of arrays that MLX has just made.

Where numpy has exp for vectors (x86 with AVX2 or AVX-512), it takes a tenth of the time of MLX's operations, which
write each of their steps to memory. What is behind such an array in MLX's graph has to be computed first, which costs
a tenth of a millisecond: worth it for many numbers.
"""

from collections.abc import Callable
from typing import Final

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

MANY: Final = 1 << 16  # numbers: from here on it pays
BLOCK: Final = 1 << 16  # numbers that a core's cache holds from one pass to the next
MASKED: Final = np.float32(-1e9)


def has_vector_exp() -> bool:
    """Whether numpy was built with such an exp, and this machine can run it."""
    found = np.lib.introspect.opt_func_info(func_name="^exp$", signature="float32")
    return any(
        not each["current"].startswith("baseline") for kind in found.values() for each in kind.values()
    )


QUICK: Final = has_vector_exp()


def pays(numbers: int) -> bool:
    return QUICK and numbers >= MANY


def opened(array: mx.array) -> NDArray[np.float32] | None:
    """The memory of an array that nobody else looks at, to be written in; None where several of its numbers share
    one place."""
    mx.eval(array)
    memory = np.asarray(array)
    return memory if memory.flags.c_contiguous and memory.flags.writeable else None


def softened(scores: mx.array, mask: mx.array | str | None, count: int) -> tuple[mx.array, mx.array]:
    """exp of attention scores [B, G, R * T, L] less the greatest of their row, in their own memory, and the sums
    [B, G, R * T, 1]. `count` is T, the number of queries; the mask is of [B, H, T, L], or broadcasts to it."""
    memory = opened(scores)
    assert memory is not None  # a product of matrices has a place for each number
    *outer, _, length = memory.shape
    if mask is not None:
        _hide(memory.reshape(*outer, -1, count, length), mask)
    rows = memory.reshape(-1, length)
    sums = np.empty((len(rows), 1), np.float32)
    height = max(1, BLOCK // length)
    for start in range(0, len(rows), height):
        block = rows[start : start + height]
        block -= block.max(-1, keepdims=True)
        np.exp(block, out=block)
        block.sum(-1, keepdims=True, out=sums[start : start + height])
    return scores, mx.array(sums.reshape(*memory.shape[:-1], 1))


def _hide(scores: NDArray[np.float32], mask: mx.array | str) -> None:
    """`scores` [B, G, R, T, L] of what may not be looked at become so small that their exp is 0."""
    count, length = scores.shape[-2:]
    if isinstance(mask, str):  # causal: only the last `count` places are hidden from anyone
        scores[..., length - count :] += np.where(np.tri(count, dtype=bool), np.float32(0), MASKED)
        return
    given = np.asarray(mask if mask.dtype == mx.bool_ else mask.astype(mx.float32))
    if given.ndim > 2:  # heads [H] are groups of shares [G, R]; one for all is [1, 1]
        heads = given.shape[-3]
        shares = (1, 1) if heads == 1 else scores.shape[1:3]
        given = given.reshape(*given.shape[:-3], *shares, *given.shape[-2:])
    if given.dtype == bool:
        np.copyto(scores, MASKED, where=~given)
    else:
        scores += np.maximum(given, MASKED)


def in_blocks(
    array: mx.array, function: Callable[[NDArray[np.float32]], NDArray[np.float32]]
) -> mx.array | None:
    """An array that nobody else looks at, each number made another. None where its memory can't be written in."""
    memory = opened(array)
    if memory is None:
        return None
    flat = memory.reshape(-1)
    with np.errstate(over="ignore"):
        for start in range(0, flat.size, BLOCK):
            block = flat[start : start + BLOCK]
            block[:] = function(block)
    return array


def sigmoid(x: mx.array) -> mx.array | None:
    return in_blocks(-x, _logistic)


def _logistic(negative: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.reciprocal(np.exp(negative) + np.float32(1))  # exp may be infinite: 1 / infinity is right


def softmax(x: mx.array, axis: int) -> mx.array | None:
    found = x - x.max(axis, keepdims=True)
    memory = opened(found)
    if memory is None:
        return None
    np.exp(memory, out=memory)
    memory /= memory.sum(axis, keepdims=True)
    return found

"""Whether two ways of computing the same agree, and what a model raises that cannot go one of them.

Ways are compared in float32, whatever the weights are stored in: rounding to 16 bits makes differences over dozens of
layers that are as large as those of a wrong mask or a wrong position, and larger where a mixture chooses other experts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

TOLERANCE = 0.02  # of the largest logit, in float32: far above rounding, far below a wrong answer
TOLERANCE_OF_HALVES = 0.25  # of a model that computes in 16 bits whatever it is given
FAILURES = (ValueError, TypeError, AttributeError, RuntimeError, IndexError)  # what a model raises in a batch

EMBEDDINGS = (nn.Embedding, nn.QuantizedEmbedding)

CASTS_AT_ONCE = 4
"""How many weights may be there in float32 at the same time: MLX casts one of 16 bits whole, and frees it after use."""


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Within this context embeddings are float32, and so is all that the model computes from them: MLX computes in the
    widest type of what it is given. Changes nothing where weights of 16 bits would not fit in float32, one by one."""
    if not _has_room(model):
        yield
        return
    own = {each: vars(each)["__call__"] for each in EMBEDDINGS}
    try:
        for each, embed in own.items():
            _call_by(each, _widened(embed))
        yield
    finally:
        for each, embed in own.items():
            _call_by(each, embed)


def _widened(embed: Any) -> Any:
    return lambda self, tokens: embed(self, tokens).astype(mx.float32)


def _call_by(embedding: Any, method: Any) -> None:
    embedding.__call__ = method


def _has_room(model: nn.Module) -> bool:
    halves = [each.nbytes for _, each in tree_flatten(model.parameters()) if _is_half(each)]
    return 2 * max(halves, default=0) * CASTS_AT_ONCE <= mx.get_memory_limit() - mx.get_active_memory()


def _is_half(array: mx.array) -> bool:
    return array.dtype in (mx.float16, mx.bfloat16)


def is_wide(*computed: mx.array) -> bool:
    """Whether nothing of what came of a pass is in 16 bits."""
    return not any(map(_is_half, computed))


def tolerance(*computed: mx.array) -> float:
    """The share of the largest logit by which two ways of computing the same may differ, where this came of a pass."""
    return TOLERANCE if is_wide(*computed) else TOLERANCE_OF_HALVES


def difference(found: mx.array, expected: mx.array) -> float:
    """The largest difference of a logit, as a share of the largest logit."""
    return float(mx.abs(found - expected).max() / mx.maximum(mx.abs(expected).max(), 1e-6))

"""Whether two ways of computing the same agree, and what a model raises that cannot go one of them.

Ways are compared in float32, whatever the weights are stored in: rounding to 16 bits makes differences over dozens of
layers that are as large as those of a wrong mask or a wrong position, and larger where a mixture chooses other experts.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from msgspec import Struct

from pippin.engines.device import require_sound_device
from pippin.engines.language.kept import keep, known
from pippin.engines.language.upstream.classes import replaced

log = logging.getLogger(__name__)

TOLERANCE = 0.02  # of the largest logit, in float32: far above rounding, far below a wrong answer
TOLERANCE_OF_HALVES = 0.25  # of a model that computes in 16 bits whatever it is given
TRIES = 2  # with other tokens, before something is given up
SPREAD = 7919  # a prime, by which the tokens of a trial lie apart
FAILURES = (
    *(ValueError, TypeError, AttributeError, RuntimeError, LookupError, ArithmeticError),
    *(AssertionError, StopIteration, OSError),
)
"""What models and processors of the libraries raise for what they cannot take."""

EMBEDDINGS = (nn.Embedding, nn.QuantizedEmbedding)
PROJECTIONS = ((nn.Linear, "__call__"), (nn.Embedding, "as_linear"))
"""The methods that multiply by a whole matrix, which MLX casts where it is given something wider."""

CASTS_AT_ONCE = 4
"""How many weights may be there in float32 at the same time: MLX casts one of 16 bits whole, and frees it after use."""


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Within this context embeddings are float32, and so is all that the model computes from them: MLX computes in the
    widest type of what it is given. A matrix that would not fit in float32, such as the head of a large vocabulary,
    multiplies in 16 bits. Changes nothing where stacked matrices, as of experts, would not fit."""
    most = (mx.get_memory_limit() - mx.get_active_memory()) // (2 * CASTS_AT_ONCE)
    if any(
        each.nbytes > most for _, each in tree_flatten(model.parameters()) if each.ndim > 2 and _is_half(each)
    ):
        yield
        return
    changes = [(each, "__call__", lambda own: lambda *x: own(*x).astype(mx.float32)) for each in EMBEDDINGS]
    changes += [(each, name, partial(_rounded_from, most)) for each, name in PROJECTIONS]
    with replaced(*changes):
        yield


def _rounded_from(most: int, project: Any) -> Any:
    """A projection that rounds what it is given where its weights have 16 bits and more than so many bytes."""

    def projected(self: Any, x: mx.array) -> Any:
        if self.weight.nbytes <= most or not _is_half(self.weight):
            return project(self, x)
        return project(self, x.astype(self.weight.dtype)).astype(mx.float32)

    return projected


def ordinary_tokens(vocabulary: int, count: int, attempt: int) -> list[int]:
    """So many tokens, others in each attempt, from all over the vocabulary but its beginning and end: special ones are
    there, after which logits jump."""
    spread = (np.arange(count) * SPREAD + attempt * 37) % max(vocabulary // 2, 1)
    found: list[int] = (vocabulary // 3 + spread).tolist()
    return found


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


class Passed(Struct, frozen=True):
    """What a trial that passed has found, as `difference`, and what it had to stay below."""

    found: float
    tolerance: float


def passed(what: str, attempt: Callable[[int], Passed], named: str | None) -> Passed | None:
    """What the first attempt has found that passes: in a mixture, rounding may choose other experts, so that a second
    one has other tokens. None if all found a difference, or the model raised. `named`: as in `choose_batching`."""
    if (before := known(Passed, what, named)) is not None:
        return before
    for number in range(TRIES):
        try:
            tried = attempt(number)
        except FAILURES as error:
            require_sound_device(error)
            log.info("%s: %s: %s", what, type(error).__name__, error)
            continue
        if tried.found < tried.tolerance:
            keep(tried, what, named)
            return tried
        log.info("%s: a logit is off by %.4f of the largest", what, tried.found)
    return None

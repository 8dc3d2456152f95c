"""How the rows of a model can run together, found by trying: a short run that is the warm-up as well."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.engines.language.kv_cache import capacity as sizes
from pippin.engines.language.kv_cache.attention import BatchShape
from pippin.engines.language.kv_cache.capacity import rounded
from pippin.engines.language.kv_cache.group import RowGroup
from pippin.engines.language.kv_cache.kinds import (
    RowCache,
    arrays_of,
    can_batch,
    can_rewind,
    leaves,
    measure_rows,
    new_row_cache,
)
from pippin.engines.language.kv_cache.slot_group import ArenaGroup
from pippin.engines.language.kv_cache.solo_group import SoloGroup

log = logging.getLogger(__name__)

PROBE_LENGTHS = (5, 3)  # tokens of two rows of different length
TOLERANCE = {mx.float32: 0.02}  # of the largest logit: far above rounding, far below a wrong answer
TOLERANCE_OF_HALVES = 0.25  # of float16 and bfloat16, where a mixture may choose other experts too
QUANTIZED_TOLERANCE = {8: 0.1, 4: 0.6}
FAILURES = (ValueError, TypeError, AttributeError, RuntimeError, IndexError)  # what a model raises in a batch


@dataclass(frozen=True, kw_only=True)
class Batching:
    new_group: Callable[[int], RowGroup]  # given the tokens of its first row
    vocabulary: int
    shape: BatchShape | None  # None: rows run one at a time
    slack: int  # places that a row has beyond its tokens
    row_bytes: Callable[[int], int]  # of a row with so many places
    can_rewind: bool


def choose_batching(model: nn.Module, options: ModelOptions) -> Batching:
    """Raises `ServerError("load_failed")` if the model does not run, or cannot run as the options ask."""
    started = time.monotonic()
    try:
        caches = [probe_row(model, length) for length in PROBE_LENGTHS]
        alone = mx.concatenate(
            [model(mx.array([[1]]), cache=probe_row(model, length)) for length in PROBE_LENGTHS]
        )
        mx.eval(alone)
    except FAILURES as error:
        raise ServerError(
            "load_failed", f"The model does not run: {type(error).__name__}: {error}"
        ) from error
    slack = options.cache_block_tokens + options.num_draft_tokens
    vocabulary = alone.shape[-1]
    plain = _plain(model, slack, caches, alone, may_be_in_slots=options.kv_bits is None)
    if plain is None:
        if options.kv_bits is not None:
            raise _no_quantization("its caches are of a kind of their own")
        log.warning(
            "rows of this model run one at a time and prompts are not cached: its caches cannot be batched"
        )
        row_bytes = measure_rows(caches[0])
        return Batching(
            new_group=lambda _: SoloGroup(model, row_bytes),
            vocabulary=vocabulary,
            shape=None,
            slack=sizes.CAPACITY_STEP,
            row_bytes=row_bytes,
            can_rewind=False,
        )
    shape = plain if options.kv_bits is None else _quantized(model, options, slack, caches, alone)
    log.info("warm-up took %.2f s", time.monotonic() - started)
    plain_bytes = measure_rows(caches[0], slack=slack)
    shape_bytes = measure_rows(caches[0], shape.kv_bits, shape.kv_group_size, slack)
    plain_below = options.quantized_kv_start if shape.kv_bits else 0
    most_plain = rounded(plain_below + slack)
    return Batching(
        new_group=lambda length: (
            ArenaGroup(model, plain, plain_bytes)
            if length < plain_below
            else ArenaGroup(model, shape, shape_bytes)
        ),
        vocabulary=vocabulary,
        shape=shape,
        slack=slack,
        # Where short rows stay unquantised, no shorter one takes more.
        row_bytes=lambda places: (
            max(shape_bytes(places), plain_bytes(min(places, most_plain)))
            if plain_below
            else shape_bytes(places)
        ),
        can_rewind=can_rewind(caches[0]),
    )


def _plain(
    model: nn.Module, slack: int, caches: list[RowCache], alone: mx.array, *, may_be_in_slots: bool
) -> BatchShape | None:
    """How rows run together, unquantised; None if they cannot."""
    if not can_batch(caches[0]):
        return None
    attends = any(type(layer) is KVCache for layer in leaves(caches[0]))
    # A model may do more with a prompt's cache than with an arena, so that it can have the one there and not the other.
    for in_slots in (True, False) if attends and may_be_in_slots else (False,):
        shape = BatchShape(slack=slack, prompts_in_slots=in_slots)
        if _agree(model, shape, caches, alone, tolerance(alone.dtype)):
            return shape
    return None


def tolerance(dtype: mx.Dtype) -> float:
    """By what share of the largest logit two ways of computing the same may differ."""
    return TOLERANCE.get(dtype, TOLERANCE_OF_HALVES)


def _quantized(
    model: nn.Module, options: ModelOptions, slack: int, caches: list[RowCache], alone: mx.array
) -> BatchShape:
    assert options.kv_bits is not None
    layers = [layer for layer in leaves(caches[0]) if type(layer) is KVCache]
    if not layers:
        raise _no_quantization("it has no layer of full attention")
    sizes = {array.shape[-1] for layer in layers for array in (layer.keys, layer.values)}
    if any(size % options.kv_group_size for size in sizes):
        raise ServerError(
            "load_failed",
            f"kv_group_size {options.kv_group_size} does not divide the size of this model's heads "
            f"({', '.join(map(str, sorted(sizes)))}): take 32, or leave kv_bits out.",
            "kv_group_size",
        )
    shape = BatchShape(slack=slack, kv_bits=options.kv_bits, kv_group_size=options.kv_group_size)
    if not _agree(model, shape, caches, alone, QUANTIZED_TOLERANCE[options.kv_bits]):
        raise _no_quantization(
            "its attention does not take quantised keys (attention sinks, for one, do not)"
        )
    return shape


def _no_quantization(reason: str) -> ServerError:
    return ServerError(
        "load_failed", f"kv_bits cannot be used with this model: {reason}. Start without it.", "kv_bits"
    )


def probe_row(model: nn.Module, length: int) -> RowCache:
    cache = new_row_cache(model)
    model(mx.arange(1, length + 1)[None], cache=cache)
    mx.eval(arrays_of(cache))
    return cache


def _agree(
    model: nn.Module, shape: BatchShape, caches: list[RowCache], alone: mx.array, tolerance: float
) -> bool:
    """Whether two rows of different length give in a batch what they give alone, the second of them computed in its
    slot where prompts are to be."""
    group = ArenaGroup(model, shape, measure_rows(caches[0], shape.kv_bits, shape.kv_group_size, shape.slack))
    try:
        for cache, length in zip(caches, PROBE_LENGTHS, strict=True):
            reservation = group.reserve(length, 1) if not group.empty else None
            if reservation is not None:
                cache = reservation.cache
                mx.eval(model(mx.arange(1, length + 1)[None], cache=cache))
            group.join(cache, length, 1, reservation=reservation)
        together = group.forward(mx.array([[1]] * len(caches)))
        mx.eval(together)
    except FAILURES as error:
        log.info("a batch of two rows fails: %s", error)
        return False
    difference = mx.abs(together - alone).max() / mx.maximum(mx.abs(alone).max(), 1e-6)
    return float(difference) < tolerance

"""Whether two ways of computing the same agree, and what a model raises that cannot go one of them."""

import mlx.core as mx

TOLERANCE = {mx.float32: 0.02}  # of the largest logit: far above rounding, far below a wrong answer
TOLERANCE_OF_HALVES = 0.25  # of float16 and bfloat16, where a mixture may choose other experts too
FAILURES = (ValueError, TypeError, AttributeError, RuntimeError, IndexError)  # what a model raises in a batch


def tolerance(dtype: mx.Dtype) -> float:
    """The share of the largest logit by which two ways of computing the same may differ."""
    return TOLERANCE.get(dtype, TOLERANCE_OF_HALVES)


def is_near(found: mx.array, expected: mx.array, tolerance: float) -> bool:
    difference = mx.abs(found - expected).max() / mx.maximum(mx.abs(expected).max(), 1e-6)
    return float(difference) < tolerance

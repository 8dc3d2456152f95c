"""exp, sigmoid, erf, softmax and attention in float32 for MLX on CPUs of Linux.

MLX's kernels there compute exp, sigmoid, erf and softmax one number at a time, which is two thirds of the time of a
prompt of 256 tokens in SmolLM2, and more than half where Pippin's kernels compute its products alone. numpy computes
large arrays of them at once, where it has a vectorised exp (`in_place.py`). `install` puts these functions into
`mlx.core`, where models find them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from pippin.engines.cpu import in_place

LOGITS = 1 << 14
"""Fewer numbers than nearly all vocabularies have: draws of a row are computed alike alone and beside others."""


def attention(
    queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array | str | None
) -> mx.array:
    """Scaled dot product attention of queries [B, H, T, D] over keys and values [B, G, L, D]; H is a multiple of G."""
    rows, heads, count, size = queries.shape
    groups = keys.shape[1]
    folded = (queries * scale).reshape(rows, groups, -1, size)
    powers, sums = in_place.exp_and_sums(folded @ keys.swapaxes(-1, -2), mask, count)
    return (powers @ values / sums).reshape(rows, heads, count, values.shape[-1])


@dataclass(frozen=True)
class Elementwise:
    """An elementwise function of `mlx.core` that leaves large float32 arrays to `large`, which may give None."""

    own: Callable[..., mx.array]
    large: Callable[[mx.array], mx.array | None]
    least: int = in_place.LARGE

    def __call__(self, x: Any, **options: Any) -> mx.array:
        found = self.large(x) if _is_large(x, self.least) and not options else None
        return self.own(x, **options) if found is None else found


@dataclass(frozen=True)
class Softmax:
    """`mx.softmax` that leaves large float32 arrays to numpy."""

    own: Callable[..., mx.array]

    def __call__(self, x: Any, axis: Any = None, **options: Any) -> mx.array:
        known = _is_large(x) and isinstance(axis, int) and not options.keys() - {"precise"}
        found = in_place.softmax(x, axis) if known else None
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
        worth = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] >= in_place.LARGE
        if worth and q.dtype == k.dtype == v.dtype == mx.float32 and sinks is None and not options:
            return attention(q, k, v, scale, mask)
        return self.own(q, k, v, scale=scale, mask=mask, sinks=sinks, **options)


def _is_large(x: Any, least: int = in_place.LARGE) -> bool:
    return isinstance(x, mx.array) and x.dtype == mx.float32 and x.size >= least


def install() -> None:
    """Put these functions into `mlx.core` of this process, if numpy is quicker here. A second call does nothing."""
    if not in_place.HAS_VECTOR_EXP or isinstance(mx.sigmoid, Elementwise):
        return
    core, fast = vars(mx), vars(mx.fast)
    core["exp"] = Elementwise(mx.exp, in_place.exp, LOGITS)
    core["sigmoid"] = Elementwise(mx.sigmoid, in_place.sigmoid)
    core["erf"] = Elementwise(mx.erf, in_place.erf)
    core["softmax"] = Softmax(mx.softmax)
    fast["scaled_dot_product_attention"] = Attention(mx.fast.scaled_dot_product_attention)

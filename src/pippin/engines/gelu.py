"""GELU for processors on which MLX computes `erf` one number at a time."""

import math
from functools import partial
from typing import Final

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

# erf(z) = z P(z^2) / Q(z^2) to 5e-8 for |z| up to REACH, where 1 - erf is 8e-8; fitted by least squares whose weights
# follow the error. Products and sums are computed many at a time.
REACH: Final = 3.8
P: Final = (
    1.128378987312317,
    0.18659450113773346,
    0.05116346478462219,
    0.0034757459070533514,
    2.3191486252471805e-4,
)
Q: Final = (
    *(1.0, 0.4986967146396637, 0.11158120632171631, 0.014202415943145752, 0.0010370173258706927),
    *(2.374425093876198e-05, -1.1850239900468296e-07),
)
# The same for erf(x / sqrt(2)) / 2, so that nothing is left to divide.
HALF_P: Final = tuple(factor / 2**power / math.sqrt(8) for power, factor in enumerate(P))
HALF_Q: Final = tuple(factor / 2**power for power, factor in enumerate(Q))


@partial(mx.compile, shapeless=True)
def _gelu(values: mx.array) -> mx.array:
    inside = mx.clip(values, -REACH * math.sqrt(2), REACH * math.sqrt(2))
    square = inside * inside
    return values * (0.5 + inside * _polynomial(HALF_P, square) / _polynomial(HALF_Q, square))


def _polynomial(coefficients: tuple[float, ...], value: mx.array) -> mx.array:
    *others, highest = coefficients
    found = value * highest + others[-1]
    for coefficient in reversed(others[:-1]):
        found = found * value + coefficient
    return found


class RationalGELU(nn.Module):  # type: ignore[misc]
    def __call__(self, values: mx.array) -> mx.array:
        found: mx.array = _gelu(values) if values.dtype == mx.float32 else nn.gelu(values)
        return found


def quicken_gelu(model: nn.Module) -> None:
    """Let all layers that apply the exact function apply this one."""
    found = [
        (name, RationalGELU())
        for name, module in model.named_modules()
        if type(module) is nn.GELU and module._approx == "none"
    ]
    model.update_modules(tree_unflatten(found))

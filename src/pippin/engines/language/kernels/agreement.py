"""Whether what the kernels compute of a model is what the libraries compute."""

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 1e-3
"""A fraction of the largest number of a layer's output: far above rounding, far below another architecture's."""


class OtherAnswer(Exception):
    """The kernels compute something else than the installed mlx-lm or mlx-vlm, whose class of the model has changed."""


def require_agreement(part: str, found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """How far what the kernels found for a part of a model is from what mlx-lm gives. Raises `OtherAnswer`."""
    difference = float(np.abs(found - expected).max() / max(float(np.abs(expected).max()), 1e-6))
    if not difference < TOLERANCE:
        raise OtherAnswer(
            f"{part} computed by the kernels is {difference:.1g} of its largest number away from what the installed "
            "mlx-lm gives"
        )
    return difference

"""Finds the Llama 3 rope scaling that a file's table of factors was made with.

llama.cpp's converter writes the factors of each frequency as the tensor `rope_freqs` and drops the parameters;
MLX wants the parameters. Formula: transformers, modeling_rope_utils.py, `_compute_llama3_parameters`.
"""

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LOW, HIGH, ORIGINAL_CONTEXT = 1.0, 4.0, 8192  # of every Llama 3.1, 3.2 and 3.3
TOLERANCE: Final = 1e-4


def llama3_scaling(factors: NDArray[np.float32], theta: float) -> dict[str, Any] | None:
    """`rope_scaling` for config.json, or None if the factors do not come from Llama 3's formula."""
    factor = float(f"{float(factors.max()):.6g}")
    if not math.isfinite(factor) or factor < 1:
        return None
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LOW,
        "high_freq_factor": HIGH,
        "original_max_position_embeddings": ORIGINAL_CONTEXT,
    }
    expected = llama3_factors(2 * factors.size, theta, factor)
    return scaling if np.allclose(factors, expected, rtol=TOLERANCE) else None


def llama3_factors(dimensions: int, theta: float, factor: float) -> NDArray[np.float64]:
    """What each frequency is divided by, [dimensions / 2]."""
    frequencies = theta ** -(np.arange(0, dimensions, 2) / dimensions)
    wavelengths = 2 * math.pi / frequencies
    smooth = (ORIGINAL_CONTEXT / wavelengths - LOW) / (HIGH - LOW)
    between = 1 / ((1 - smooth) / factor + smooth)
    long, short = wavelengths > ORIGINAL_CONTEXT / LOW, wavelengths < ORIGINAL_CONTEXT / HIGH
    return np.where(short, 1.0, np.where(long, factor, between))

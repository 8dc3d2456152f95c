"""The rational GELU is the exact one, to the rounding of float32."""

import math

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from pippin.engines.gelu import REACH, P, Q, RationalGELU, quicken_gelu

EXACT = np.vectorize(math.erf)


def test_the_rational_function_is_erf_to_a_ten_millionth() -> None:
    inside = np.linspace(-REACH, REACH, 40_001)
    square = inside**2
    found = inside * np.polyval(P[::-1], square) / np.polyval(Q[::-1], square)
    assert np.abs(found - EXACT(inside)).max() < 6e-8
    assert 1 - math.erf(REACH) < 1e-7  # what lies beyond is cut off there


def test_in_float32_it_errs_by_its_rounding() -> None:
    values = np.linspace(-12, 12, 40_001, dtype=np.float32)
    exact = values * (1 + EXACT(values.astype(np.float64) / math.sqrt(2))) / 2
    found = np.array(RationalGELU()(mx.array(values)))
    assert np.abs(found - exact).max() < 2e-6


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_no_number_stays_so(value: float) -> None:
    np.testing.assert_array_equal(
        np.array(RationalGELU()(mx.array([value, 0.0]))), np.array([value, 0.0], np.float32)
    )


def test_only_layers_of_the_exact_function_are_changed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Sequential(nn.GELU("tanh"), nn.GELU()), nn.ReLU())
    values = mx.random.normal((3, 4))
    expected = np.array(model(values))
    quicken_gelu(model)
    kinds = [type(module) for module in model.leaf_modules()["layers"][1:2]]
    assert kinds == [RationalGELU]
    inner = model.layers[2].layers
    assert [type(module) for module in inner] == [nn.GELU, RationalGELU]
    np.testing.assert_allclose(np.array(model(values)), expected, atol=1e-6)


@pytest.mark.parametrize("kind", [mx.float16, mx.bfloat16])
def test_sixteen_bits_are_the_librarys_matter(kind: mx.Dtype) -> None:
    values = mx.random.normal((64,)).astype(kind)
    assert mx.array_equal(RationalGELU()(values), nn.gelu(values)).item()

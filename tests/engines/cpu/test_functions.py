"""exp and its kin: as exact as the library's, for every mask and shape."""

import math
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.engines.cpu import functions as cpu_functions
from pippin.engines.cpu.functions import (
    LARGE,
    Elementwise,
    Softmax,
    attention,
    erf,
    install,
    sigmoid,
    softmax,
)

WIDE = np.concatenate([np.linspace(-200, 200, 40_001), np.linspace(-1, 1, 40_001)]).astype(np.float32)


def test_sigmoid_and_erf_are_right_to_six_digits_and_at_the_ends() -> None:
    x = WIDE.astype(np.float64)
    assert np.abs(np.array(sigmoid(mx.array(WIDE))) - 1 / (1 + np.exp(-x))).max() < 3e-7
    assert np.abs(np.array(erf(mx.array(WIDE))) - np.vectorize(math.erf)(x)).max() < 4e-7
    ends = mx.array([-math.inf, -1e30, 0.0, 1e30, math.inf])
    assert sigmoid(ends).tolist() == pytest.approx([0, 0, 0.5, 1, 1], abs=1e-30)
    assert erf(ends).tolist() == [-1, -1, 0, 1, 1]


def test_what_is_no_number_stays_none() -> None:
    broken = mx.full((4,), math.nan)
    for found in (sigmoid(broken), erf(broken), softmax(broken, -1)):
        assert mx.isnan(found).all()


@pytest.mark.parametrize("axis", [-1, 0])
def test_softmax_leaves_out_what_is_minus_infinity(axis: int) -> None:
    x = mx.array([[1.0, -math.inf, 3.0], [-200.0, -2.0, -math.inf]])
    np.testing.assert_allclose(softmax(x, axis), mx.softmax(x, axis=axis), atol=1e-6)


def test_what_is_given_stays_as_it_is_and_may_lie_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_functions, "LARGE", 1)
    quick = Elementwise(mx.sigmoid, sigmoid), partial(Softmax(mx.softmax), axis=-1)
    numbers = mx.random.normal((6, 8))
    row = mx.random.normal((8,))
    for x in (
        numbers,
        numbers.T,
        numbers[::2, 1:5],
        mx.broadcast_to(row, (6, 8)),
        mx.broadcast_to(row[:1], (6, 8)),
    ):
        before = np.array(x)
        for ours, theirs in zip(quick, (mx.sigmoid, partial(mx.softmax, axis=-1)), strict=True):
            np.testing.assert_allclose(ours(x), theirs(x), atol=1e-6)
            np.testing.assert_array_equal(np.array(x), before)


def test_numbers_that_share_a_place_are_not_written_in_place() -> None:
    shared = mx.broadcast_to(mx.ones((1,)), (4, 4))
    assert cpu_functions.writable_memory(shared) is None
    assert cpu_functions.writable_memory(mx.ones((4, 4)).T) is None
    assert cpu_functions.writable_memory(mx.ones((4, 4))) is not None


def test_blocks_of_rows_are_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(3).normal(size=(2, 3, 10, 7)).astype(np.float32) * 20
    whole = [np.array(each) for each in cpu_functions.exp_and_sums(mx.array(scores), "causal", 5)]
    monkeypatch.setattr(cpu_functions, "BLOCK", 21)
    for each, expected in zip(cpu_functions.exp_and_sums(mx.array(scores), "causal", 5), whole, strict=True):
        np.testing.assert_array_equal(each, expected)


def masks(kind: str, rows: int, heads: int, count: int, length: int) -> Any:
    seen = mx.arange(length) <= mx.arange(length - count, length)[:, None]
    match kind:
        case "none":
            return None
        case "causal":
            return "causal"
        case "rows":
            starts = mx.arange(rows)[:, None, None] % 2
            return (seen & (mx.arange(length) >= starts))[:, None]
        case "half":
            return mx.where(seen, 0.0, -1000.0).astype(mx.bfloat16)
        case "heads":
            slopes = mx.arange(1, heads + 1)[:, None, None] * 0.1
            return mx.where(seen, 0.0, -math.inf) - slopes * mx.arange(length)
        case "added":
            return mx.where(seen, 0.0, -math.inf)
        case _:
            return seen


@given(
    kind=st.sampled_from(["none", "causal", "rows", "added", "half", "plain", "heads"]),
    rows=st.integers(1, 3),
    groups=st.integers(1, 3),
    share=st.integers(1, 3),
    count=st.integers(1, 9),
    before=st.integers(2, 30),
    sharp=st.sampled_from([0.1, 1.0, 30.0]),
)
def test_attention_is_the_librarys(
    kind: str, rows: int, groups: int, share: int, count: int, before: int, sharp: float
) -> None:
    length = before + count
    mx.random.seed(rows * 1000 + count)
    queries = mx.random.normal((rows, groups * share, count, 16)) * sharp
    keys = mx.random.normal((rows, groups, length, 16))
    values = mx.random.normal((rows, groups, length, 8))
    mask = masks(kind, rows, groups * share, count, length)
    own = mx.fast.scaled_dot_product_attention
    exact = mask.astype(mx.float32) if kind == "half" else mask  # MLX's own takes no narrower one
    expected = getattr(own, "own", own)(queries, keys, values, scale=0.25, mask=exact)
    found = attention(queries, keys, values, 0.25, mask)
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.skipif(not cpu_functions.HAS_VECTOR_EXP, reason="numpy has no exp for this machine's vectors")
def test_models_find_them_for_large_arrays_of_float32_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in ("sigmoid", "erf", "softmax", "attention"):
        ours = getattr(cpu_functions, name)
        monkeypatch.setattr(
            cpu_functions, name, lambda *given, name=name, ours=ours: called.append(name) or ours(*given)
        )
    install()
    install()
    mx.disable_compile()
    large = mx.random.normal((2, LARGE // 2))
    near = {"atol": 1e-6, "rtol": 1e-5}
    np.testing.assert_allclose(nn.silu(large), large * (1 / (1 + mx.exp(-large))), **near)
    np.testing.assert_allclose(nn.softmax(large, axis=-1).sum(-1), mx.ones(2), **near)
    nn.gelu(large)
    queries = mx.random.normal((1, 8, 128, 8))
    mx.fast.scaled_dot_product_attention(queries, queries, queries, scale=1.0, mask="causal")
    assert called == ["sigmoid", "softmax", "erf", "attention"]
    called.clear()
    for small in (large[:, :16], large.astype(mx.bfloat16)):
        mx.eval(nn.silu(small), mx.softmax(small, axis=-1), nn.gelu(small))
    mx.softmax(large)
    mx.softmax(large, axis=-1, stream=mx.cpu)
    mx.fast.scaled_dot_product_attention(queries, queries, queries, scale=1.0, sinks=mx.zeros(8))
    assert not called

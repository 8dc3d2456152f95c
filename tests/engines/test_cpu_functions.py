"""exp and its kin: as exact as the library's, for every mask and shape."""

import math
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.engines import cpu_functions
from pippin.engines.cpu_functions import (
    SMALL,
    TURNS,
    Rope,
    attention,
    erf,
    exp,
    install,
    sigmoid,
    softmax,
    steady,
)

WIDE = np.concatenate([np.linspace(-200, 200, 40_001), np.linspace(-1, 1, 40_001)]).astype(np.float32)


@pytest.fixture
def originals() -> Iterator[None]:
    """`mlx.core` as it comes, and as it was afterwards."""
    core, fast = vars(mx), vars(mx.fast)
    held = {name: core[name] for name in ("sigmoid", "erf", "softmax")}
    quick = {name: fast[name] for name in ("scaled_dot_product_attention", "rope")}
    for name, function in held.items():
        core[name] = getattr(function, "own", function)
    for name, function in quick.items():
        fast[name] = getattr(function, "own", function)
    yield
    core.update(held)
    fast.update(quick)


def test_exp_is_right_wherever_float32_holds_it() -> None:
    x = WIDE[np.abs(WIDE) < 87]
    found = np.array(exp(mx.array(x)), np.float64)
    # What the argument's own rounding costs grows with it, for the library's exp as well.
    bound = 3e-7 + 1.2e-7 * np.abs(x)
    assert (np.abs(found / np.exp(x.astype(np.float64)) - 1) < bound).all()


def test_sigmoid_and_erf_are_right_to_six_digits_and_at_the_ends() -> None:
    x = WIDE.astype(np.float64)
    assert np.abs(np.array(sigmoid(mx.array(WIDE))) - 1 / (1 + np.exp(-x))).max() < 3e-7
    assert np.abs(np.array(erf(mx.array(WIDE))) - np.vectorize(math.erf)(x)).max() < 4e-7
    ends = mx.array([-math.inf, -1e30, 0.0, 1e30, math.inf])
    assert sigmoid(ends).tolist() == pytest.approx([0, 0, 0.5, 1, 1], abs=1e-30)
    assert erf(ends).tolist() == [-1, -1, 0, 1, 1]


def test_what_is_no_number_stays_none() -> None:
    broken = mx.full((4,), math.nan)
    for function in (exp, sigmoid, erf, softmax):
        assert mx.isnan(function(broken)).all()


def test_softmax_leaves_out_what_is_minus_infinity() -> None:
    x = mx.array([[1.0, -math.inf, 3.0], [-200.0, -math.inf, -math.inf]])
    np.testing.assert_allclose(softmax(x), mx.softmax(x, axis=-1), atol=1e-6)


def masks(kind: str, rows: int, count: int, length: int) -> Any:
    seen = mx.arange(length) <= mx.arange(length - count, length)[:, None]
    match kind:
        case "none":
            return None
        case "causal":
            return "causal"
        case "rows":
            starts = mx.arange(rows)[:, None, None] % 2
            return (seen & (mx.arange(length) >= starts))[:, None]
        case "added":
            return mx.where(seen, 0.0, -math.inf)
        case _:
            return seen


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["none", "causal", "rows", "added", "plain"]),
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
    mask = masks(kind, rows, count, length)
    own = mx.fast.scaled_dot_product_attention
    expected = getattr(own, "own", own)(queries, keys, values, scale=0.25, mask=mask)
    np.testing.assert_allclose(attention(queries, keys, values, 0.25, mask), expected, atol=2e-5, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 3),
    count=st.integers(1, 5),
    size=st.sampled_from([16, 24]),
    kind=st.sampled_from(["number", "steady", "array"]),
    factors=st.sampled_from(["base", "freqs"]),
    scale=st.sampled_from([1.0, 0.25]),
    traditional=st.booleans(),
    data=st.data(),
)
def test_rope_is_the_librarys_wherever_rows_stand(
    rows: int,
    count: int,
    size: int,
    kind: str,
    factors: str,
    scale: float,
    traditional: bool,
    data: st.DataObject,
) -> None:
    own = getattr(mx.fast.rope, "own", mx.fast.rope)
    ours = Rope(own)
    x = mx.random.normal((rows, count, 2, size)).transpose(0, 2, 1, 3)
    options: dict[str, Any] = {"traditional": traditional, "scale": scale, "base": None}
    options |= {"base": 1e4} if factors == "base" else {"freqs": mx.exp(mx.random.normal((8,)) * 4)}
    for _ in range(3):  # steps
        places = data.draw(st.lists(st.integers(0, 5000), min_size=rows, max_size=rows))
        offset: Any = places[0] if kind == "number" else mx.array(places)
        offset = steady(offset) if kind == "steady" else offset
        for _ in range(2):  # layers
            expected = own(x, 16, offset=offset, **options)
            np.testing.assert_allclose(ours(x, 16, offset=offset, **options), expected, atol=1e-6)


def test_angles_are_taken_once_for_a_step_and_never_of_an_array_that_may_change() -> None:
    calls: list[Any] = []
    own = getattr(mx.fast.rope, "own", mx.fast.rope)
    rope = Rope(lambda *given, **options: calls.append(options["offset"]) or own(*given, **options))
    x = mx.random.normal((2, 1, 1, 16))
    options: dict[str, Any] = {"traditional": False, "scale": 1.0, "base": 1e4}
    changing = mx.array([3, 4])
    rope(x, 16, offset=changing, **options)
    changing += 1
    np.testing.assert_array_equal(
        rope(x, 16, offset=changing, **options), own(x, 16, offset=changing, **options)
    )
    assert len(calls) == 2
    for place in range(20):
        offset = steady(mx.array([place, place + 7]))
        for _ in range(3):
            rope(x, 16, offset=offset, **options)
    assert len(calls) == 2
    assert len(rope._turns) == TURNS


@pytest.mark.usefixtures("originals")
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
    large = mx.random.normal((2, SMALL // 2))
    near = {"atol": 1e-6, "rtol": 1e-5}
    np.testing.assert_allclose(nn.silu(large), large * (1 / (1 + mx.exp(-large))), **near)
    np.testing.assert_allclose(nn.softmax(large, axis=-1).sum(-1), mx.ones(2), **near)
    nn.gelu(large)
    queries = mx.random.normal((1, 8, 64, 8))
    mx.fast.scaled_dot_product_attention(queries, queries, queries, scale=1.0, mask="causal")
    assert called == ["sigmoid", "softmax", "erf", "attention"]
    called.clear()
    for small in (large[:, :16], large.astype(mx.bfloat16)):
        mx.eval(nn.silu(small), mx.softmax(small, axis=-1), nn.gelu(small))
    mx.softmax(large)
    mx.softmax(large, axis=-1, stream=mx.cpu)
    mx.fast.scaled_dot_product_attention(queries, queries, queries, scale=1.0, sinks=mx.zeros(8))
    assert not called

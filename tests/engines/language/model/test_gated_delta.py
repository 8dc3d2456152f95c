"""Blocks of the gated delta rule give what mlx-lm computes token by token."""

import io

import mlx.core as mx
import pytest
from mlx_lm.models import gated_delta

from pippin.engines.language.model.gated_delta import BLOCK, compute_in_blocks

TOKENS = 2 * BLOCK + 22
Arrays = tuple[mx.array, ...]


@pytest.fixture(autouse=True)
def in_blocks() -> None:
    compute_in_blocks()


def drawn(tokens: int, correlated: float = 0.8) -> Arrays:
    """Queries, keys, values, decays, strengths and a state: 2 sequences, 2 heads of keys and 4 of values."""
    mx.random.seed(5)
    shape = 2, tokens, 2, 32
    q, k = mx.random.normal(shape), mx.random.normal(shape) + correlated
    q, k = gated_delta.normalize_qk(q, k, inv_scale=32**-0.5, eps=1e-6)
    g, beta = mx.exp(-mx.exp(mx.random.normal((2, tokens, 4)))), mx.sigmoid(mx.random.normal((2, tokens, 4)))
    return q, k, mx.random.normal((2, tokens, 4, 16)), g, beta, mx.random.normal((2, 4, 16, 32))


def by_tokens(arrays: Arrays, mask: mx.array | None) -> tuple[mx.array, mx.array]:
    found: tuple[mx.array, mx.array] = gated_delta.gated_delta_ops.__wrapped__(*arrays, mask)
    return found


def off(found: mx.array, expected: mx.array) -> float:
    return float(mx.abs(found - expected).max() / mx.abs(expected).max())


@pytest.mark.parametrize("correlated", [0.0, 3.0])
@pytest.mark.parametrize("padded", [False, True])
def test_blocks_give_what_single_tokens_give(correlated: float, padded: bool) -> None:
    arrays, mask = drawn(TOKENS, correlated), None
    if padded:
        mask = mx.arange(TOKENS) < mx.array([[TOKENS], [TOKENS - 30]])
    outputs, state = gated_delta.gated_delta_ops(*arrays, mask)
    expected, left = by_tokens(arrays, mask)
    assert off(outputs[:, : TOKENS - 30], expected[:, : TOKENS - 30]) < 1e-4
    assert off(state, left) < 1e-4


def test_a_decay_of_nothing_forgets_all_before() -> None:
    q, k, v, g, beta, state = drawn(BLOCK)
    g[:, 9] = 0
    outputs, _ = gated_delta.gated_delta_ops(q, k, v, g, beta, state)
    assert off(outputs, by_tokens((q, k, v, g, beta, state), None)[0]) < 1e-4


def test_few_tokens_are_computed_one_by_one() -> None:
    arrays = drawn(BLOCK - 1)
    for found, expected in zip(gated_delta.gated_delta_ops(*arrays), by_tokens(arrays, None), strict=True):
        assert mx.array_equal(found, expected)


def test_a_block_queues_a_tenth_of_the_operations() -> None:
    def count(arrays: tuple[mx.array, mx.array]) -> int:
        written = io.StringIO()
        mx.export_to_dot(written, *arrays)
        return written.getvalue().count("label")

    arrays = drawn(4 * BLOCK)
    mx.eval(arrays)
    assert count(gated_delta.gated_delta_ops(*arrays)) * 10 < count(by_tokens(arrays, None))

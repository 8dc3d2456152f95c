"""What chunks cost: the two parts are told apart, and no guess runs away."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.engines.language.chunk_cost import ChunkCost

SECONDS = st.floats(0.001, 5)


def test_the_fixed_part_and_the_rate_are_found() -> None:
    cost = ChunkCost()
    for tokens in (16, 64, 40):
        cost.observe(tokens, 0.07 + 0.0025 * tokens)
    assert cost.affordable(0.07 + 0.0025 * 50, fixed=9.9) == pytest.approx(50, abs=1)


def test_chunks_of_one_size_are_judged_by_the_fixed_part_given() -> None:
    cost = ChunkCost()
    for _ in range(5):
        cost.observe(20, 0.15)
    assert cost.affordable(0.22, fixed=0.07) == pytest.approx(37, abs=1)
    assert cost.affordable(0.05, fixed=0.07) == 0


def test_nothing_is_said_before_a_measurement() -> None:
    assert ChunkCost().affordable(1.0, fixed=0.1) is None


def test_a_slower_machine_is_noticed() -> None:
    cost = ChunkCost()
    for rate in (1e-3, 1e-2):
        for _ in range(40):
            for tokens in (20, 60):
                cost.observe(tokens, 0.01 + rate * tokens)
    assert cost.affordable(0.41, fixed=0.0) == pytest.approx(40, abs=2)


@given(st.lists(st.tuples(st.integers(1, 4096), SECONDS), min_size=1, max_size=30), SECONDS, SECONDS)
def test_a_chunk_is_at_most_twice_what_was_seen(
    measured: list[tuple[int, float]], seconds: float, fixed: float
) -> None:
    cost = ChunkCost()
    for tokens, taken in measured:
        cost.observe(tokens, taken)
    found = cost.affordable(seconds, fixed)
    assert found is not None
    assert 0 <= found <= 2 * max(tokens for tokens, _ in measured)

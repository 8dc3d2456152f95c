"""What steps cost: the parts are told apart, rows never seen are foreseen, and no guess runs away."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.engines.language.step_cost import StepCost

SECONDS = st.floats(0.001, 5)


def seconds(rows: int, tokens: int) -> float:
    """A machine that takes 70 ms to read the weights once, 4 ms for a row, 2.5 ms for a token."""
    return (0.07 + 0.004 * rows if rows else 0.0) + (0.07 + 0.0025 * tokens if tokens else 0.0)


def measured(steps: list[tuple[int, int]]) -> StepCost:
    cost = StepCost()
    for rows, tokens in steps:
        cost.observe(rows, tokens, seconds(rows, tokens))
    return cost


def test_all_parts_are_found() -> None:
    cost = measured([(1, 0), (8, 0), (8, 16), (8, 64), (2, 40)])
    assert cost.decoding(16) == pytest.approx(0.134, abs=1e-3)
    assert cost.affordable(0.07 + 0.0025 * 50) == pytest.approx(50, abs=1)


def test_what_rows_take_is_learned_while_each_step_computes_prompts() -> None:
    cost = measured([(1, 0), *((rows, 20 + rows % 3 * 8) for rows in range(4, 30))])
    assert cost.decoding(30) == pytest.approx(0.19, abs=0.01)
    assert cost.affordable(0.145) == pytest.approx(30, abs=3)


def test_steps_of_one_size_tell_mostly_of_the_fixed_part() -> None:
    cost = measured([(1, 0)] * 9)
    assert cost.decoding(1) == pytest.approx(0.074, abs=1e-3)
    assert 0.074 < cost.decoding(8) < 0.1


def test_nothing_is_said_before_a_measurement() -> None:
    assert StepCost().affordable(1.0) is None
    assert StepCost().decoding(4) == 0


def test_a_slower_machine_is_noticed() -> None:
    cost = StepCost()
    for rate in (1e-3, 1e-2):
        for _ in range(40):
            for tokens in (20, 60):
                cost.observe(0, tokens, 0.01 + rate * tokens)
    assert cost.affordable(0.41) == pytest.approx(40, abs=2)


def test_a_step_that_was_held_up_is_not_believed() -> None:
    cost = measured([(1, 0), (8, 0)] * 8)
    cost.observe(8, 0, 30.0)
    assert cost.decoding(8) < 0.12


@given(
    st.lists(st.tuples(st.integers(0, 64), st.integers(0, 4096), SECONDS), min_size=1, max_size=80), SECONDS
)
def test_no_guess_runs_away(steps: list[tuple[int, int, float]], target: float) -> None:
    cost = StepCost()
    for rows, tokens, taken in steps:
        cost.observe(rows, tokens, taken)
    found = cost.affordable(target)
    most = max(tokens for _, tokens, _ in steps)
    assert (found is None) == (most == 0)
    assert 0 <= (found or 0) <= 2 * most
    assert cost.decoding(1) <= cost.decoding(64) <= 64 * max(taken for _, _, taken in steps)

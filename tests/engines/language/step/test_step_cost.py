"""What steps cost: the parts are told apart, rows never seen are foreseen, and no guess runs away."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.engines.language.step.scheduler import Step, StepCost

SECONDS = st.floats(0.001, 5)


def seconds(rows: int, tokens: int, pairs: float = 0.0) -> float:
    """A machine that takes 70 ms to read the weights once, 4 ms for a row, 2.5 ms for a token, 2 us for a look back."""
    decoding = 0.07 + 0.004 * rows if rows else 0.0
    return decoding + (0.07 + 0.0025 * tokens + 2e-6 * pairs if tokens else 0.0)


def measured(steps: list[tuple[int, int]]) -> StepCost:
    cost = StepCost()
    for rows, tokens in steps:
        cost.observe(Step(rows, tokens, 0.0, 0, seconds(rows, tokens)))
    return cost


def test_chunks_shrink_as_their_prompt_grows() -> None:
    cost = StepCost()
    for rows, tokens, context in (
        (1, 0, 0),
        (4, 0, 0),
        (4, 64, 0),
        (4, 32, 500),
        (4, 64, 1500),
        (4, 48, 2500),
    ):
        pairs = float(tokens * context)
        cost.observe(Step(rows, tokens, pairs, 0, seconds(rows, tokens, pairs)))
    for context in (0, 1000, 4000):
        found = cost.affordable(0.07 + 40 * (0.0025 + 2e-6 * context), context)
        assert found == pytest.approx(40, abs=1)


def test_what_copies_take_is_told_apart() -> None:
    """Each turn of a conversation copies what is known of it, and becomes a row."""
    cost = StepCost()
    for turn in range(12):
        copies = 5000 + 200 * turn
        cost.observe(Step(2, 32, 32.0 * copies, copies, seconds(2, 32, 32.0 * copies) + copies / 1e4))
        for tokens in (16, 48):
            cost.observe(Step(2, tokens, tokens * 5000.0, 0, seconds(2, tokens, tokens * 5000.0)))
        cost.observe(Step(2, 0, 0.0, 0, seconds(2, 0)))
    assert cost.decoding(2) == pytest.approx(seconds(2, 0), rel=0.02)
    assert cost.affordable(0.07 + 40 * (0.0025 + 2e-6 * 5000), 5000) == pytest.approx(40, abs=2)


def test_all_parts_are_found() -> None:
    cost = measured([(1, 0), (8, 0), (8, 16), (8, 64), (2, 40)])
    assert cost.decoding(16) == pytest.approx(0.134, abs=1e-3)
    assert cost.affordable(0.07 + 0.0025 * 50, 0) == pytest.approx(50, abs=1)


def test_what_sequences_take_is_learned_while_each_step_computes_prompts() -> None:
    cost = measured([(1, 0), *((rows, 20 + rows % 3 * 8) for rows in range(4, 30))])
    assert cost.decoding(30) == pytest.approx(0.19, abs=0.01)
    assert cost.affordable(0.145, 0) == pytest.approx(30, abs=3)


def test_steps_of_one_size_tell_mostly_of_the_fixed_part() -> None:
    cost = measured([(1, 0)] * 9)
    assert cost.decoding(1) == pytest.approx(0.074, abs=1e-3)
    assert 0.074 < cost.decoding(8) < 0.1


def test_nothing_is_said_before_a_measurement() -> None:
    assert StepCost().affordable(1.0, 0) is None
    assert StepCost().decoding(4) == 0


def test_a_slower_machine_is_noticed() -> None:
    cost = StepCost()
    for rate in (1e-3, 1e-2):
        for _ in range(40):
            for tokens in (20, 60):
                cost.observe(Step(0, tokens, 0.0, 0, 0.01 + rate * tokens))
    assert cost.affordable(0.41, 0) == pytest.approx(40, abs=2)


def test_a_step_that_was_held_up_is_not_believed() -> None:
    cost = measured([(1, 0), (8, 0)] * 8)
    cost.observe(Step(8, 0, 0.0, 0, 30.0))
    assert cost.decoding(8) < 0.12


@given(
    st.lists(
        st.tuples(
            st.integers(0, 64), st.integers(0, 4096), st.integers(0, 9000), st.integers(0, 9000), SECONDS
        ),
        min_size=1,
        max_size=80,
    ),
    SECONDS,
    st.integers(0, 9000),
)
def test_no_guess_runs_away(
    steps: list[tuple[int, int, int, int, float]], target: float, context: int
) -> None:
    cost = StepCost()
    for rows, tokens, before, copies, taken in steps:
        cost.observe(Step(rows, tokens, float(tokens * before), copies, taken))
    found = cost.affordable(target, context)
    most = max(tokens for _, tokens, *_ in steps)
    assert (found is None) == (most == 0)
    assert 0 <= (found or 0) <= 2 * most
    assert cost.decoding(1) <= cost.decoding(64) <= 64 * max(taken for *_, taken in steps)


def test_a_slow_start_does_not_leave_nothing_for_what_steps_take_later() -> None:
    """While its first prompts come, a machine compiles, and what steps take tells little of what they do."""
    for seed in range(20):
        draw, cost = Random(seed), StepCost()
        for step in range(24):
            rows, tokens = step, draw.randint(16, 512)
            slowly = (1 + max(0.0, 10 - step)) * draw.lognormvariate(0, 0.6)
            cost.observe(Step(rows, tokens, 0.0, 0, (0.008 * bool(rows) + 2e-4 * tokens) * slowly))
        for _ in range(30):
            cost.observe(Step(32, 0, 0.0, 0, 0.008))
        assert cost.decoding(32) == pytest.approx(0.008, rel=0.2)

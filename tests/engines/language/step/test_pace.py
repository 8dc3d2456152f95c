"""How many tokens are proposed follows what they are worth, on machines made up of a cost and a chance."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.engines.device import WITH_AVX2, WITH_VNNI
from pippin.engines.language.step.speculation.pace import (
    Acceptance,
    Pace,
    Points,
    StepTimes,
    expected_tokens,
)

MINUTE = 60.0


@dataclass
class Machine:
    """What a step takes, and how often the model agrees with a proposal."""

    token: float  # seconds of a plain step
    more: float  # share of it that each proposed token adds
    chance: Callable[[float], float]  # at a time
    sequences: int = 1
    most: int = 4
    noise: float = 0.0
    overlap: float = 0.0  # share of a step by which looking for proposals makes it longer
    found: float = 1.0  # share of steps in which there are proposals

    def run(self, seconds: float, seed: int = 0) -> list[tuple[float, float, int]]:
        """The steps: when each ended, what it would have taken plain for the tokens that it gave, and its width."""
        draw, pace, now = Random(seed), Pace(self.most, overlaps=self.overlap > 0), 0.0
        seen = [Acceptance() for _ in range(self.sequences)]
        steps = []
        looks = False
        while now < seconds:
            chances = [each.chance for each in seen]
            lengths = [0] * self.sequences
            if looks:
                there = self.most if draw.random() < self.found else 0
                lengths = pace.lengths(chances, [there] * self.sequences)
            width = 1 + max(lengths)
            taken = self.token * (1 + self.more * (width - 1)) * (1 + self.noise * draw.random())
            taken *= 1 + self.overlap if looks and width == 1 else 1
            tokens = 0
            for acceptance, length in zip(seen, lengths, strict=True):
                accepted = 0
                while accepted < length and draw.random() < self.chance(now):
                    accepted += 1
                acceptance.observe(length, accepted)
                tokens += 1 + accepted
            if looks and width == 1:
                pace.looked_in_vain(self.sequences, taken)
            else:
                pace.observe(self.sequences, self.sequences * width, taken, tokens)
            now += taken
            steps.append((now, self.token * (1 + self.noise / 2) * tokens / self.sequences, width))
            looks = pace.worth_looking([each.chance for each in seen])
        return steps


def speed(steps: list[tuple[float, float, int]], begin: float, end: float) -> float:
    """Times as fast as without proposals, between two times."""
    within = [step for step in steps if begin < step[0] <= end]
    return sum(plain for _, plain, _ in within) / (end - begin)


machines = st.builds(
    Machine,
    token=st.floats(0.03, 0.2),
    more=st.floats(0.0, 1.5),
    chance=st.floats(0.0, 1.0).map(lambda chance: lambda now: chance),
    sequences=st.integers(1, 8),
    most=st.integers(1, 8),
    noise=st.sampled_from([0.0, 0.2]),
    overlap=st.sampled_from([0.0, 0.3]),
    found=st.floats(0.0, 1.0),
)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(machines, st.integers(0, 99))
def test_no_minute_is_slower_than_097_of_what_it_would_be_without(machine: Machine, seed: int) -> None:
    steps = machine.run(2 * MINUTE, seed)
    for begin in range(0, 61, 10):
        assert speed(steps, begin, begin + MINUTE) > 0.97


@pytest.mark.parametrize("sequences", [1, 2, 4, 8])
@pytest.mark.parametrize(("more", "chance"), [(0.05, 0.9), (0.1, 0.7), (0.3, 0.8), (0.02, 0.5)])
def test_it_is_nearly_as_fast_as_with_the_best_length(more: float, chance: float, sequences: int) -> None:
    machine = Machine(token=0.05, more=more, chance=lambda now: chance, sequences=sequences)
    best = max(expected_tokens(chance, length) / (1 + more * length) for length in range(machine.most + 1))
    assert best > 1.1
    assert speed(machine.run(MINUTE), 0, MINUTE) > 0.93 * best


def test_a_plain_step_behind_a_check_is_not_what_plain_steps_take() -> None:
    """Nothing was computed ahead for it. Beside such steps alone, checks that lose would look as if they paid."""
    pace, draw = Pace(1), Random(1)
    now, tokens, width = 0.0, 0, 2
    while now < MINUTE:
        before, width = width, 1 + pace.lengths([0.75], [1])[0]
        right = width - 1 if draw.random() < 0.75 else 0
        seconds = 0.0185 if width == 2 else 0.010 if before == 1 else 0.015
        pace.observe(1, width, seconds, 1 + right)
        now, tokens = now + seconds, tokens + 1 + right
    assert tokens * 0.010 / now > 0.97


def test_where_every_token_costs_a_step_hardly_any_is_proposed() -> None:
    steps = Machine(token=0.05, more=1.0, chance=lambda now: 0.6).run(MINUTE)
    assert sum(width - 1 for _, _, width in steps) < 0.08 * len(steps)


@pytest.mark.parametrize("good", [(0.0, 60.0), (60.0, 120.0)])
def test_it_comes_back_when_it_pays_again_and_leaves_off_when_it_does_not(good: tuple[float, float]) -> None:
    begin, end = good
    machine = Machine(token=0.05, more=0.15, chance=lambda now: 0.9 if begin <= now < end else 0.02)
    steps = machine.run(2 * MINUTE)
    assert speed(steps, begin + 10, end) > 1.6
    assert speed(steps, 60 - begin + 10, 120 - begin) > 0.97


def test_of_two_sequences_only_the_one_that_is_guessed_right_has_proposals() -> None:
    pace = Pace(4)
    for _ in range(4):
        pace.observe(2, 2, 0.02, 2)
    pace.times.observe(2, 10, 0.03)
    good, bad = Acceptance(), Acceptance()
    for _ in range(30):
        good.observe(4, 4)
        bad.observe(4, 0)
    pace._trial = 1  # no trial is due
    lengths = pace.lengths([good.chance, bad.chance], [4, 4])
    assert lengths[0] == 4
    assert lengths[1] < 2


def measured(costs: dict[int, float], sequences: int) -> Pace:
    """A pace without padding that knows what passes of these sequences take, by the tokens that they compute."""
    pace = Pace(8, costs=WITH_VNNI)
    for _ in range(3):
        pace.observe(sequences, sequences, costs[sequences], sequences)
    for _ in range(2):
        for computed, seconds in costs.items():
            pace.times.observe(sequences, computed, seconds)
    pace._trial = 1  # no trial is due
    return pace


KERNELS = {4: 0.010, 5: 0.016, 8: 0.017, 9: 0.027, 16: 0.029, 17: 0.044, 32: 0.055}
"""What four sequences take where groups of vectors are multiplied at once: seconds, by tokens."""


def test_without_padding_the_likeliest_proposals_come_first_whosesoever_they_are() -> None:
    pace = measured(KERNELS, 4)
    assert pace.lengths([0.99, 0.0, 0.0, 0.0], [8, 0, 0, 0]) == [4, 0, 0, 0], "to the end of a group"
    assert pace.lengths([0.95] * 4, [8] * 4) == [3] * 4
    most = pace.lengths([0.97, 0.97, 0.5, 0.0], [8, 8, 8, 0])
    assert most[0] >= 5
    assert most[1] >= 5
    assert most[2] <= 1
    assert most[3] == 0


def test_where_the_budget_is_used_up_what_is_certain_is_taken_and_no_guess() -> None:
    pace = measured({2: 1.0, 3: 1.1, 4: 1.2, 6: 1.4, 8: 1.6}, 2)
    assert all(pace.lengths([0.9, 1.0], [3, 3]))
    while pace.may_propose(2):
        pace.observe(2, 8, 10.0, 2)
        for _ in range(2):
            pace.observe(2, 2, 1.0, 2)
    guess, chain = pace.lengths([0.9, 1.0], [3, 3])
    assert (guess, chain > 0) == (0, True)


def test_what_hardly_pays_is_not_proposed_at_four_and_what_copies_is() -> None:
    pace = measured(KERNELS, 4)
    pace._budget = 0.0  # nothing to try with
    assert pace.lengths([0.6] * 4, [8] * 4) == [0] * 4
    assert sum(pace.lengths([0.95] * 4, [8] * 4)) == 12


def run_of_four(chance: float, steps: int, seed: int) -> float:
    """Times the speed of plain steps: four new sequences on the kernels, each of which finds something in a third of
    its steps."""
    draw, pace = Random(seed), Pace(8, costs=WITH_VNNI)
    seen = [Acceptance() for _ in range(4)]
    taken, given = 0.0, 0
    for _ in range(steps):
        rooms = [8 if draw.random() < 1 / 3 else 0 for _ in seen]
        lengths = pace.lengths(
            [each.chance if room else 0.0 for each, room in zip(seen, rooms, strict=True)], rooms
        )
        tokens = 4
        for acceptance, length in zip(seen, lengths, strict=True):
            accepted = next((place for place in range(length) if draw.random() >= chance), length)
            acceptance.observe(length, accepted)
            tokens += accepted
        computed = pace.computed(lengths)
        seconds = KERNELS[next(size for size in KERNELS if size >= computed)]
        pace.observe(4, computed, seconds, tokens)
        taken, given = taken + seconds, given + tokens
    return given / taken * KERNELS[4] / 4


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.6])
def test_a_second_of_four_sequences_pays_little_for_finding_out(chance: float) -> None:
    """It paid a tenth: 0.1 seconds could be lost at once, and went into passes that could not have paid."""
    speeds = [run_of_four(chance, 96, seed) for seed in range(10)]
    assert min(speeds) > 0.94
    assert sum(speeds) / len(speeds) > 0.96


def test_four_sequences_try_nothing_that_could_not_pay_if_more_were_right() -> None:
    pace = Pace(8, costs=WITH_VNNI)
    for _ in range(3):
        pace.observe(4, 4, 0.01, 4)
    pace.observe(4, 8, 0.016, 5)  # one was right of four
    assert pace.lengths([0.3, 0.3, 0.0, 0.0], [8, 8, 0, 0]) == [0] * 4


def test_what_was_never_measured_is_come_to_in_steps() -> None:
    """A guess that is too low would have the first check compute all that there is."""
    pace = Pace(8, costs=WITH_VNNI)
    for _ in range(3):
        pace.observe(4, 4, 0.01, 4)
    computed = []
    for _ in range(4):
        computed.append(pace.computed(pace.lengths([1.0] * 4, [8] * 4)))
        pace.observe(4, computed[-1], 0.01 * (1 + computed[-1] / 40), computed[-1])
    assert computed[0] <= 8
    assert all(after <= 2 * max(4, *computed[: index + 1]) for index, after in enumerate(computed[1:]))
    assert max(computed) > 8


def test_before_it_is_measured_what_a_pass_takes_is_known_of_the_processor() -> None:
    pays = {}
    for costs in (WITH_VNNI, WITH_AVX2):
        pace = Pace(8, costs=costs)
        for _ in range(3):
            pace.observe(1, 1, 0.010, 1)
        rates = [pace.rate([0.6], [count]) for count in (0, 1)]
        pays[costs] = rates[1] > rates[0]
        assert pace.times.expected(1, 2) == pytest.approx(0.010 * dict(costs)[2])
    assert pays[WITH_VNNI]
    assert not pays[WITH_AVX2]


def test_one_vector_more_than_a_product_takes_does_not_speak_for_many() -> None:
    """Five vectors take as long as six. By a line through that, four sequences would not pay for their right proposals
    at all, and nothing was proposed for the rest of their answers."""
    pace = Pace(8, costs=WITH_VNNI)
    for _ in range(3):
        pace.observe(4, 4, 0.010, 4)
    pace.observe(4, 5, 0.0173, 5)
    assert pace.times.expected(4, 6) < 0.018
    assert pace.times.expected(4, 8) < 0.024
    assert sum(pace.lengths([0.95] * 4, [8] * 4)) >= 4


def test_a_first_pass_that_was_held_up_does_not_speak_for_longer_ones() -> None:
    times = StepTimes(costs=WITH_VNNI)
    for _ in range(2):
        times.observe(4, 4, 0.01)
    times.observe(4, 11, 0.2)
    assert times.expected(4, 11) < 0.034
    assert times.expected(4, 16) < 0.045


def test_one_pass_that_was_held_up_does_not_make_its_length_look_dear() -> None:
    times = StepTimes()
    times.observe(1, 1, 0.01)
    for computed, seconds in {4: 0.030, 8: 0.016}.items():
        times.observe(1, computed, seconds)
    assert times.expected(1, 4) == pytest.approx(0.016), "as much as for eight, at most"


@pytest.mark.parametrize("costs", [(), WITH_VNNI], ids=["with padding", "without"])
def test_no_pass_is_expected_to_take_less_than_a_plain_step(costs: Points) -> None:
    """Plain steps that were held up made a line that fell, and beyond its zero times below none."""
    times = StepTimes(costs)
    for _ in range(2):
        times.observe(2, 2, 0.1)
    for _ in range(3):
        times.observe(2, 4, 0.01)
        times.observe(2, 10, 0.01)
    assert all(times.expected(2, 2 * width) >= times.plain(2) for width in range(1, 12))


def test_a_plain_step_is_measured_before_anything_is_proposed_and_now_and_then_again() -> None:
    pace = Pace(4)
    assert pace.lengths([1.0], [4]) == [0]
    pace.observe(1, 1, 0.02, 1)
    pace.observe(1, 1, 0.02, 1)
    widths = []
    for _ in range(300):
        width = 1 + pace.lengths([1.0], [4])[0]
        pace.observe(1, width, 0.02, width)
        widths.append(width)
    assert 3 <= widths.count(1) <= 6
    assert pace.lengths([1.0, 1.0], [4, 4]) == [0, 0], "two at once were never measured"


def test_times_between_measured_widths_lie_between_them() -> None:
    times = StepTimes()
    for _ in range(3):
        times.observe(1, 1, 0.10)
        times.observe(1, 5, 0.18)
    assert times.expected(1, 3) == pytest.approx(0.14)
    assert times.expected(1, 9) == pytest.approx(0.26)
    times.observe(2, 2, 0.2)
    assert times.expected(2, 10) == pytest.approx(0.36), "as with one, for want of better knowledge"


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8))))
def test_a_chance_is_one(history: list[tuple[int, int]]) -> None:
    acceptance = Acceptance()
    for proposed, accepted in history:
        acceptance.observe(proposed, min(proposed, accepted))
    assert 0 <= acceptance.chance <= 1

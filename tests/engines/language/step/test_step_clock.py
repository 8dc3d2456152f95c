"""What a step is taken to have cost, whoever else wants the machine's cores."""

from dataclasses import dataclass, field

import pytest

from pippin.engines.language.step.speculation.clock import StepClock


@dataclass
class Machine:
    clock: float = 0.0
    cores: float = 0.0
    measures: StepClock = field(init=False)

    def __post_init__(self) -> None:
        self.measures = StepClock(lambda: self.clock, lambda: self.cores, threads=2)

    def step(self, width: int, *, seconds: float, cores: float, sequences: int = 1) -> float:
        """What is measured of one that passes in so many seconds, and takes so many of the cores' time."""
        began = self.measures.now()
        self.clock += seconds
        self.cores += cores
        return self.measures.seconds((sequences, width), began)


def test_on_a_machine_without_neighbours_the_clock_tells() -> None:
    """A check that takes as long again on one core of sixteen costs twice as much, not a sixteenth more."""
    machine = Machine()
    for _ in range(20):
        assert machine.step(1, seconds=0.1, cores=1.6) == pytest.approx(0.1)
        assert machine.step(5, seconds=0.2, cores=1.7) == pytest.approx(0.2)


def test_beside_neighbours_the_time_of_the_cores_tells() -> None:
    machine = Machine()
    measured = [
        (
            machine.step(1, seconds=held * 0.1, cores=0.2),
            machine.step(5, seconds=(9 - held) * 0.12, cores=0.24),
        )
        for held in [*range(1, 9)] * 6
    ]
    for plain, checked in measured[8:]:
        assert plain == pytest.approx(0.1)
        assert checked == pytest.approx(0.12)


def test_when_the_neighbours_leave_the_clock_tells_again() -> None:
    machine = Machine()
    for held in [*range(1, 9)] * 4:
        machine.step(1, seconds=held * 0.1, cores=0.2)
    for _ in range(40):
        machine.step(1, seconds=0.1, cores=0.2)
    assert machine.step(5, seconds=0.3, cores=0.24) == pytest.approx(0.3)


def test_a_machine_that_was_never_without_neighbours_is_told_by_less_than_a_core() -> None:
    """All steps of a loaded server kept a third of a core busy: that was taken for what they do undisturbed, and steps
    of one sequence, when the load was high, looked dearer than those of four later on."""
    machine = Machine()
    for held in range(1, 20):
        assert machine.step(1, seconds=0.04 * (1 + held % 3), cores=0.012) == pytest.approx(0.006)
    for _ in range(20):
        measured = machine.step(4, seconds=0.05, cores=0.017, sequences=4)
        assert measured == pytest.approx(0.0085)


def test_kinds_that_were_seen_beside_neighbours_alone_compare_by_the_time_of_cores() -> None:
    machine = Machine()
    for _ in range(20):
        machine.step(1, seconds=0.0075, cores=0.0135)
    for held in (1, 2, 3, 4) * 10:
        machine.step(1, seconds=held * 0.02, cores=0.0135)
    assert machine.step(4, seconds=0.05, cores=0.018, sequences=4) == pytest.approx(0.01)


def test_on_a_device_of_its_own_the_clock_tells() -> None:
    seconds = iter((1.0, 1.25))
    clock = StepClock(lambda: next(seconds))
    assert clock.seconds((1, 1), clock.now()) == 0.25

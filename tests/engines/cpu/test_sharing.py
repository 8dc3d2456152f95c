"""The BLAS keeps to one thread while others want the cores."""

import sys

import pytest

from pippin.engines.cpu.sharing import BlasThreads, CoreTime, core_time


class Machine:
    """Says how long the threads ran and stood in line, a second at a time."""

    def __init__(self, *seconds: tuple[float, float]) -> None:
        self._readings = [CoreTime(0.0, 0.0)]
        for ran, waited in seconds:
            last = self._readings[-1]
            self._readings.append(CoreTime(last.ran + ran, last.waited + waited))
        self.told: list[int] = []

    def run(self, most: int = 2) -> list[int]:
        threads = BlasThreads(most, self.told.append, iter(self._readings).__next__)
        found = []
        for second in range(len(self._readings)):
            threads.look(10.0 + second)
            threads.look(10.2 + second)  # too soon to look again
            found.append(threads.now)
        return found


def test_a_quiet_machine_keeps_all_threads() -> None:
    machine = Machine((1.8, 0.1), (1.9, 0.2), (0.4, 0.05))
    assert machine.run() == [2, 2, 2, 2]
    assert machine.told == []


def test_crowded_cores_leave_one_thread_until_they_are_free() -> None:
    machine = Machine((0.7, 1.2), (0.6, 0.3), (0.9, 0.1), (1.0, 0.02), (1.9, 0.1))
    assert machine.run() == [2, 1, 1, 1, 2, 2]
    assert machine.told == [1, 2]


def test_a_worker_with_one_thread_is_left_alone() -> None:
    machine = Machine((0.1, 1.9), (0.1, 1.9))
    assert machine.run(most=1) == [1, 1, 1]
    assert machine.told == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts it")
def test_linux_counts_the_time_of_all_threads() -> None:
    before = core_time()
    sum(range(2_000_000))
    after = core_time()
    assert before is not None
    assert after is not None
    assert after.ran > before.ran

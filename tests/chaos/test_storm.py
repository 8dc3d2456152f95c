"""The storm in small: twenty seconds of every fault, and the phases that need no weights."""

import asyncio
import os
import statistics
from pathlib import Path

import pytest

from tests.chaos.__main__ import health_line, was_down
from tests.chaos.ledger import Ledger
from tests.chaos.phases import phase
from tests.chaos.storm import storm


@pytest.mark.timeout(180)
def test_twenty_seconds_of_every_fault_break_nothing(tmp_path: Path) -> None:
    report = asyncio.run(storm(tmp_path, 20, seed=os.getpid()))
    assert report.ledger.broken == []
    assert sum(count for name, count in report.ledger.outcomes.items() if name.startswith("answered")) > 50
    answers = [ms for at, ms, _ in report.health if ms >= 0 and not was_down(report, at)]
    assert statistics.median(answers) < 100, health_line(report)


@pytest.mark.parametrize("name", ["a full disk", "hardly any memory"])
def test_a_phase_breaks_nothing(name: str, tmp_path: Path) -> None:
    ledger = asyncio.run(phase(name, tmp_path))
    assert ledger.broken == []
    assert ledger.outcomes["answered chat"] > 0


@pytest.mark.long
def test_far_more_than_each_limit_allows_is_answered_rightly_or_told_why(tmp_path: Path) -> None:
    ledger = asyncio.run(phase("past every limit", tmp_path))
    assert ledger.broken == []


def test_a_crossed_answer_would_be_seen() -> None:
    """The ledger is no decoration."""
    ledger = Ledger()
    ledger.violation("chat: asked 'a', was told 'b'")
    assert ledger.broken
    assert not ledger.was_down(0.0)
    ledger.going_down()
    assert ledger.was_down(1e12)

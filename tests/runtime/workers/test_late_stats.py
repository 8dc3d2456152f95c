"""Figures of a worker that does not answer: what came and went since it last did."""

from pippin.core.models import EngineStats, RequestStatus
from pippin.runtime.workers.supervisor import brought_up_to_date

LAST = EngineStats(
    running=2,
    waiting=1,
    steps=7,
    requests=(
        RequestStatus(id="a", phase="generation", generated_tokens=3),
        RequestStatus(id="b", phase="prefill"),
        RequestStatus(id="c", phase="queued"),
    ),
)


def test_who_came_is_queued_and_who_left_is_gone() -> None:
    known = brought_up_to_date(LAST, ["a", "c", "d"])
    assert [(each.id, each.phase) for each in known.requests] == [
        ("a", "generation"),
        ("c", "queued"),
        ("d", "queued"),
    ]
    assert (known.running, known.waiting, known.steps) == (1, 2, 7)
    assert known.requests[0].generated_tokens == 3


def test_where_nothing_changed_it_is_the_last_snapshot() -> None:
    assert brought_up_to_date(LAST, ["a", "b", "c"]) == LAST
    assert brought_up_to_date(EngineStats(), []) == EngineStats()

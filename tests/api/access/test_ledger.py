"""Limits that several processes count together: here two ledgers over one file, as two processes have."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pippin.api.access import ledger as module
from pippin.api.access.exchange import Exchange
from pippin.api.access.keys import Allowance
from pippin.api.access.ledger import SharedLedger
from pippin.api.access.limits import Limits
from pippin.core.errors import ServerError

Pair = tuple[SharedLedger, SharedLedger]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    ledgers = SharedLedger(tmp_path / "limits.db", 0), SharedLedger(tmp_path / "limits.db", 1)
    yield ledgers
    for each in ledgers:
        each.close()


def asked(caller: str = "alice") -> Exchange:
    return Exchange(id="1", path="/v1/chat/completions", caller=caller)


def both(pair: Pair, allowance: Allowance, most: int | None = None) -> tuple[Limits, Limits]:
    one, other = (Limits(allowance, most, lambda: 100.0, ledger) for ledger in pair)
    return one, other


def test_requests_of_a_caller_are_counted_by_both(pair: Pair) -> None:
    one, other = both(pair, Allowance(requests=3))
    for limits in (one, other, one):
        limits.admit(asked())
    for limits in (one, other):
        with pytest.raises(ServerError, match="3 requests a minute"):
            limits.admit(asked())
    other.admit(asked("bob"))
    one.forgive(asked())
    other.admit(asked())


def test_tokens_of_a_caller_are_counted_by_both(pair: Pair) -> None:
    one, other = both(pair, Allowance(tokens=10))
    one.admit(asked())
    one.enter()
    one.leave(asked(), tokens=11)
    with pytest.raises(ServerError, match="10 tokens a minute"):
        other.admit(asked())


def test_places_are_counted_by_both_and_those_of_a_dead_process_are_free(pair: Pair) -> None:
    one, other = both(pair, Allowance(), most=2)
    one.enter()
    other.enter()
    for limits in (one, other):
        with pytest.raises(ServerError, match="busy with 2 requests"):
            limits.enter()
    pair[0].forget(1)
    one.enter()
    one.leave(asked(), 0)
    one.leave(asked(), 0)
    assert pair[0].running(2) == 0


def test_a_limit_that_is_set_later_counts_what_runs_already(pair: Pair) -> None:
    one, other = both(pair, Allowance())
    other.enter()
    other.enter()
    for limits in (one, other):
        limits.adopt(Allowance(), 3)
    other.enter()  # tells how many it has
    with pytest.raises(ServerError, match="busy with 3 requests"):
        one.enter()


def test_a_change_that_fails_leaves_the_bucket_as_it_was_and_free_for_others(pair: Pair) -> None:
    def fail() -> None:
        with pair[0].bucket("requests", "alice", 10, 100.0) as bucket:
            bucket.level = 0
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    with pair[1].bucket("requests", "alice", 10, 100.0) as bucket:
        assert bucket.level == 10


def test_callers_without_end_are_forgotten(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 20)
    monkeypatch.setattr(module, "FORGET_EVERY", 10)
    for number in range(100):
        with pair[0].bucket("requests", f"caller {number}", 5, float(number)) as bucket:
            bucket.level -= 1
    with pair[1].bucket("requests", "caller 99", 5, 99.0) as bucket:
        assert bucket.level == 4
    with pair[1].bucket("requests", "caller 1", 5, 1.0) as bucket:
        assert bucket.level == 5

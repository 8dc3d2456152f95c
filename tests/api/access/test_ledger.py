"""Limits that several processes count together: here two ledgers over one file, as two processes have."""

import asyncio
import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pippin.api.access import ledger as module
from pippin.api.access.exchange import Exchange
from pippin.api.access.keys import Allowance
from pippin.api.access.ledger import SharedLedger
from pippin.api.access.limits import Draw, Ledger, Limits, OwnLedger
from pippin.core.errors import ServerError

Pair = tuple[Ledger, Ledger]


@pytest.fixture
def pair(processes: tuple[SharedLedger, SharedLedger]) -> Pair:
    return processes


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[tuple[SharedLedger, SharedLedger]]:
    ledgers = SharedLedger(tmp_path / "limits.db", 0), SharedLedger(tmp_path / "limits.db", 1)
    yield ledgers
    for each in ledgers:
        each.close()


def asked(caller: str = "alice") -> Exchange:
    return Exchange(id="1", path="/v1/chat/completions", caller=caller)


def both(pair: tuple[Ledger, Ledger], allowance: Allowance, most: int | None = None) -> tuple[Limits, Limits]:
    one, other = (Limits(allowance, most, lambda: 100.0, ledger) for ledger in pair)
    return one, other


def test_requests_of_a_caller_are_counted_by_both(pair: Pair) -> None:
    async def play() -> None:
        one, other = both(pair, Allowance(requests=3))
        for limits in (one, other, one):
            await limits.admit(asked())
        for limits in (one, other):
            with pytest.raises(ServerError, match="3 requests a minute"):
                await limits.admit(asked())
        await other.admit(asked("bob"))
        one.forgive(asked())
        await other.admit(asked())

    asyncio.run(play())


def test_tokens_of_a_caller_are_counted_by_both(pair: Pair) -> None:
    async def play() -> None:
        one, other = both(pair, Allowance(tokens=10))
        await one.admit(asked())
        await one.enter()
        one.leave(asked(), tokens=11)
        with pytest.raises(ServerError, match="10 tokens a minute"):
            await other.admit(asked())

    asyncio.run(play())


def test_places_are_counted_by_both_and_those_of_a_dead_process_are_free(
    processes: tuple[SharedLedger, SharedLedger],
) -> None:
    async def play() -> None:
        one, other = both(processes, Allowance(), most=2)
        await one.enter()
        await other.enter()
        for limits in (one, other):
            with pytest.raises(ServerError, match="busy with 2 requests"):
                await limits.enter()
        processes[0].forget(1)
        await one.enter()
        one.leave(asked(), 0)
        one.leave(asked(), 0)
        assert processes[0].running(2) == 0

    asyncio.run(play())


def test_a_limit_that_is_set_later_counts_what_runs_already(
    processes: tuple[SharedLedger, SharedLedger],
) -> None:
    async def play() -> None:
        one, other = both(processes, Allowance())
        await other.enter()
        await other.enter()
        for limits in (one, other):
            limits.adopt(Allowance(), 3)
        await other.enter()  # tells how many it has
        with pytest.raises(ServerError, match="busy with 3 requests"):
            await one.enter()

    asyncio.run(play())


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A process that may begin a change of the file and be stopped in the middle of it."""
    with closing(sqlite3.connect(tmp_path / "limits.db", isolation_level=None)) as connection:
        yield connection


def test_who_waits_for_the_file_holds_up_nobody_else_and_all_is_counted(
    processes: tuple[SharedLedger, SharedLedger], holder: sqlite3.Connection
) -> None:
    async def play() -> None:
        one, other = both(processes, Allowance(requests=3, tokens=10), most=20)
        for _ in range(20):
            await one.enter()
        holder.execute("BEGIN IMMEDIATE")
        waiting = [asyncio.create_task(one.admit(asked())), asyncio.create_task(other.enter())]
        for _ in range(20):
            one.leave(asked(), tokens=1)
            await one_turn()
        assert not any(each.done() for each in waiting)
        holder.execute("COMMIT")
        await asyncio.gather(*waiting, return_exceptions=True)
        with pytest.raises(ServerError, match="10 tokens a minute"):
            await other.admit(asked())
        assert processes[1].running(20) == 1

    asyncio.run(play())


async def one_turn() -> None:
    """A turn of the event loop, which takes no time worth mentioning where nothing blocks it."""
    began = time.monotonic()
    await asyncio.sleep(0)
    assert time.monotonic() - began < 1.0


def test_a_request_is_refused_where_the_file_is_held_for_long(
    processes: tuple[SharedLedger, SharedLedger], holder: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOCKED", 0.05)

    async def play() -> None:
        limits, _ = both(processes, Allowance(requests=3), most=2)
        holder.execute("BEGIN IMMEDIATE")
        for work in (limits.admit(asked()), limits.enter()):
            with pytest.raises(ServerError, match=r"cannot be counted now \(database is locked") as caught:
                await work
            assert caught.value.report.kind == "overloaded"
        holder.execute("ROLLBACK")
        await limits.enter()
        assert processes[1].running(2) == 1

    asyncio.run(play())


def test_what_was_used_while_the_disk_was_full_is_counted(
    processes: tuple[SharedLedger, SharedLedger],
) -> None:
    async def play() -> None:
        one, other = both(processes, Allowance(tokens=10))
        caller = "a name of many pages" * 1000
        database = processes[0]._database
        database.execute("PRAGMA max_page_count = 1")  # as many as it has
        await one.enter()
        one.leave(asked(caller), tokens=11)
        database.execute("PRAGMA max_page_count = 1000")
        while processes[0]._late:  # noqa: ASYNC110 (nobody is told of it)
            await asyncio.sleep(0.001)
        with pytest.raises(ServerError, match="10 tokens a minute"):
            await other.admit(asked(caller))

    asyncio.run(play())


def test_every_ledger_counts_what_came_at_the_same_time(pair: Pair) -> None:
    async def play() -> list[bool]:
        draw = Draw("requests", "alice", 40, 100.0, 1, least=1)
        return [taken for _, taken in await asyncio.gather(*(pair[n % 2].take(draw) for n in range(100)))]

    assert sum(asyncio.run(play())) == 40


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1), st.sampled_from("ab"), st.integers(1, 9), st.integers(-2, 5), st.booleans()
        ),
        max_size=20,
    )
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_ledger_counts_as_one_process_does(
    pair: Pair, draws: list[tuple[int, str, int, int, bool]]
) -> None:
    own = OwnLedger()
    example = uuid4().hex

    async def play() -> None:
        for ledger, account, size, amount, bounded in draws:
            draw = Draw("tokens", account + example, size, 100.0, amount, 1 if bounded else -math.inf)
            expected, taken = await own.take(draw)
            bucket, also = await pair[ledger].take(draw)
            assert (also, bucket.size, bucket.level) == (taken, expected.size, pytest.approx(expected.level))

    asyncio.run(play())


def test_callers_without_end_are_forgotten(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 20)
    monkeypatch.setattr(module, "FORGET_EVERY", 10)

    async def play() -> None:
        for number in range(100):
            await pair[0].take(Draw("requests", f"caller {number}", 5, float(number), 1))
        last, _ = await pair[1].take(Draw("requests", "caller 99", 5, 99.0, 0))
        first, _ = await pair[1].take(Draw("requests", "caller 1", 5, 1.0, 0))
        assert (math.ceil(last.level), first.level) == (4 if last.filled == 99.0 else 5, 5)

    asyncio.run(play())

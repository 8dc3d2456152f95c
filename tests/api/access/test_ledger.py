"""Limits that several servers count together: here two ledgers over one database."""

import asyncio
import math
from collections.abc import Iterator
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pippin.api.access import ledger as module
from pippin.api.access.exchange import Exchange
from pippin.api.access.keys import Allowance
from pippin.api.access.ledger import BUCKETS, ServersLedger
from pippin.api.access.limits import Draw, Ledger, Limits, OwnLedger
from pippin.api.databases.postgres import Postgres
from pippin.core.errors import ServerError
from tests.api.databases.server import PostgresServer

Pair = tuple[Ledger, Ledger]


@pytest.fixture
def pair(postgres: PostgresServer | None) -> Iterator[Pair]:
    if postgres is None:
        pytest.skip("PostgreSQL is not installed")
    databases = Postgres(postgres.address), Postgres(postgres.address)
    databases[0].prepare("DROP TABLE IF EXISTS buckets;" + BUCKETS)
    one, other = (ServersLedger(each, OwnLedger(), lambda: 100.0) for each in databases)
    yield one, other
    for each in databases:
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

    asyncio.run(play())


def test_tokens_of_a_caller_are_counted_by_both(pair: Pair) -> None:
    async def play() -> None:
        one, other = both(pair, Allowance(tokens=10))
        await one.admit(asked())
        await one.enter()
        one.leave(asked(), tokens=11)
        await settled(pair)
        with pytest.raises(ServerError, match="10 tokens a minute"):
            await other.admit(asked())

    asyncio.run(play())


async def settled(pair: Pair) -> None:
    """Wait until what was charged is written."""
    for ledger in pair:
        if isinstance(ledger, ServersLedger):
            await ledger.settled()


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
            if isinstance(pair[0], ServersLedger):
                pair[0]._clock = lambda now=float(number): now  # type: ignore[misc]
            await pair[0].take(Draw("requests", f"caller {number}", 5, float(number), 1))
        last, _ = await pair[1].take(Draw("requests", "caller 99", 5, 99.0, 0))
        first, _ = await pair[1].take(Draw("requests", "caller 1", 5, 1.0, 0))
        assert (math.ceil(last.level), first.level) == (4 if last.filled == 99.0 else 5, 5)

    asyncio.run(play())


def test_while_the_database_is_away_each_server_counts_alone(postgres: PostgresServer | None) -> None:
    if postgres is None:
        pytest.skip("PostgreSQL is not installed")

    async def play() -> None:
        database = Postgres(postgres.address)
        database.prepare("DROP TABLE IF EXISTS buckets;" + BUCKETS)
        limits = Limits(Allowance(requests=2), ledger=ServersLedger(database, OwnLedger()))
        postgres.stop()
        try:
            await limits.admit(asked())
            await limits.admit(asked())
            with pytest.raises(ServerError, match="2 requests a minute"):
                await limits.admit(asked())
        finally:
            postgres.start()
            database.close()

    asyncio.run(play())

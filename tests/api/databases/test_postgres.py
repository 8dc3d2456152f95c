"""The database that servers share, as a real PostgreSQL server: what is kept, and what follows when it is away."""

import os
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pippin.api.databases import postgres as module
from pippin.api.databases.postgres import Postgres, host_of
from pippin.core.errors import ServerError
from tests.api.databases.server import PostgresServer


@pytest.fixture
def server(postgres: PostgresServer | None) -> PostgresServer:
    if postgres is None:
        pytest.skip("PostgreSQL is not installed")
    return postgres


@pytest.fixture
def database(server: PostgresServer) -> Iterator[Postgres]:
    opened = Postgres(server.address)
    opened.prepare(
        "DROP TABLE IF EXISTS things; CREATE TABLE things (name TEXT NOT NULL, size INTEGER NOT NULL);"
    )
    yield opened
    opened.close()


def count(database: Postgres) -> int:
    with database.transaction() as transaction:
        return int(transaction.execute("SELECT COUNT(*) FROM things").fetchone()[0])


def add(database: Postgres, name: str = "a") -> None:
    with database.transaction() as transaction:
        transaction.execute("INSERT INTO things VALUES (?, ?)", (name, 1))


def test_a_transaction_that_raises_leaves_nothing(database: Postgres) -> None:
    with pytest.raises(ValueError, match="stop"), database.transaction() as transaction:
        transaction.execute("INSERT INTO things VALUES (?, ?)", ("a", 1))
        raise ValueError("stop")
    assert count(database) == 0


@pytest.mark.parametrize("text", ["", "\0", "a\0b", "\U0010ffff0", "\U0010ffff\0", "50 % of 'it'?", "日本"])
def test_every_text_comes_back_as_it_was(database: Postgres, text: str) -> None:
    add(database, text)
    with database.transaction() as transaction:
        assert transaction.execute("SELECT name FROM things WHERE name = ?", (text,)).fetchall() == [(text,)]


def test_those_that_are_alone_do_not_run_at_the_same_time(database: Postgres, server: PostgresServer) -> None:
    other = Postgres(server.address)
    inside: list[int] = []
    most = 0

    def run(each: Postgres) -> None:
        nonlocal most
        with each.transaction(alone=True):
            inside.append(1)
            most = max(most, len(inside))
            time.sleep(0.02)
            inside.pop()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(run, [database, other] * 6))
    other.close()
    assert most == 1


def test_a_server_that_was_started_again_is_used_again_without_an_error(
    database: Postgres, server: PostgresServer
) -> None:
    add(database)
    server.stop()
    server.start()
    assert count(database) == 1


def test_while_the_server_is_away_calls_are_refused_at_once_and_then_answered(
    database: Postgres, server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.stop()
    began = time.monotonic()
    for _ in range(20):
        with pytest.raises(ServerError, match="can't be reached now") as caught:
            count(database)
        assert (caught.value.report.status, caught.value.report.retry_after) == (503, 1.0)
    assert time.monotonic() - began < 1.0
    server.start()
    time.sleep(module.ASK_AGAIN_AFTER)
    assert count(database) == 0
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition("(")[0] for line in said] == [
        f"The state at 127.0.0.1:{server.port} can't be reached ",
        f"The state at 127.0.0.1:{server.port} is reached again.",
    ]
    assert "secret" not in caplog.text


def refused(database: Postgres) -> None:
    with pytest.raises(ServerError):
        count(database)


def test_a_server_that_says_nothing_is_given_up_and_holds_nobody_else(
    database: Postgres, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_WITHIN", 0.5)
    assert count(database) == 0
    with server.frozen():
        began = time.monotonic()
        with pytest.raises(ServerError, match="can't be reached now"):
            count(database)
        assert time.monotonic() - began < 3.0
        time.sleep(module.ASK_AGAIN_AFTER)
        # One call finds out whether it is there again; the others are not kept waiting.
        asking = threading.Thread(target=refused, args=(database,))
        asking.start()
        time.sleep(0.2)
        began = time.monotonic()
        with pytest.raises(ServerError, match="can't be reached now"):
            count(database)
        assert time.monotonic() - began < 0.5
        asking.join()
    time.sleep(module.ASK_AGAIN_AFTER)
    assert count(database) == 0


def test_a_connection_is_closed_with_its_database(server: PostgresServer) -> None:
    one, other = Postgres(server.address), Postgres(server.address)
    query = "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = 'pippin'"
    with one.transaction() as transaction, other.transaction():
        before = transaction.execute(query).fetchone()[0]
    other.close()
    deadline = time.monotonic() + 10
    while True:
        with one.transaction() as transaction:
            if transaction.execute(query).fetchone()[0] == before - 1:
                break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    one.close()


@pytest.mark.parametrize("address", ["redis://here", "postgresql://[", "here", "postgresql://a/b?nonsense=1"])
def test_an_address_that_is_none_is_refused_without_being_told(address: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(ServerError, match=r"must be postgresql://USER:PASSWORD@HOST:PORT/DATABASE"):
        Postgres(address)


def test_of_an_address_the_host_alone_is_told() -> None:
    assert host_of("postgresql://me:secret@db.example:5432/x?sslmode=require") == "db.example:5432"
    assert host_of("postgres://db.example/x") == "db.example"
    assert host_of("postgresql://me:se%40cret@db/x") == "db"
    for careless in (
        "postgresql:///x?password=secret",
        "postgresql://me:a@secret@db/x",
        "postgresql://me:secret/1@db/x",
    ):
        assert "secret" not in host_of(careless)


def test_a_transaction_that_took_too_long_leaves_the_database_open_to_the_others(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_WITHIN", 0.3)
    with database.transaction(), database.transaction():
        pass  # two connections rest from here on
    with pytest.raises(ServerError), database.transaction() as transaction:
        transaction.execute("SELECT pg_sleep(5)")
    time.sleep(module.ASK_AGAIN_AFTER)
    assert [count(database) for _ in range(3)] == [0, 0, 0]


def test_a_process_with_many_files_open_uses_a_connection_again(
    database: Postgres, server: PostgresServer
) -> None:
    few = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, few[1]), few[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]  # select() takes numbers below 1024
    late = Postgres(server.address)
    try:
        add(late)
        assert count(late) == 1
    finally:
        late.close()
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, few)


def test_a_server_that_only_reads_refuses_what_is_written_and_says_when_to_try_again(
    database: Postgres,
) -> None:
    with database.transaction() as transaction:
        transaction.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
    with pytest.raises(ServerError, match="refused this") as caught:
        add(database)
    assert (caught.value.report.status, caught.value.report.retry_after) == (503, 1.0)

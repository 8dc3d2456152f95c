"""SQLite files: which are used, which are put aside, and what follows when the disk is full."""

import sqlite3
from pathlib import Path

import pytest

from pippin.api.sqlite import Schema, open_file, open_memory
from pippin.core.errors import ServerError

TABLES = "CREATE TABLE IF NOT EXISTS things (name TEXT NOT NULL);"


SCHEMA = Schema(version=3, tables=TABLES)


def written(path: Path, version: int) -> None:
    with sqlite3.connect(path) as database:
        database.executescript(TABLES)
        database.execute("INSERT INTO things VALUES ('a')")
        database.execute(f"PRAGMA user_version = {version}")


def names(path: Path) -> list[str]:
    database = open_file(path, SCHEMA)
    with database.transaction() as transaction:
        found = [name for (name,) in transaction.execute("SELECT name FROM things")]
    database.close()
    return found


@pytest.mark.parametrize(("version", "found"), [(3, ["a"]), (2, []), (4, [])])
def test_a_file_of_another_version_is_put_aside(
    tmp_path: Path, version: int, found: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path / "db", version)
    assert names(tmp_path / "db") == names(tmp_path / "db") == found
    assert (tmp_path / "db.unreadable").exists() == (found == [])
    assert ("put aside" in caplog.text) == (found == [])


def test_a_file_that_is_no_database_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "db").write_bytes(b"no database" * 100)
    assert names(tmp_path / "db") == []
    assert (tmp_path / "db.unreadable").read_bytes() == b"no database" * 100
    assert "db.unreadable" in caplog.text


def test_a_database_that_cannot_be_opened_now_stays_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    with pytest.raises(ServerError, match=r"db cannot be opened: unable to open"):
        open_file(tmp_path / "db", SCHEMA)
    assert [path.name for path in tmp_path.iterdir()] == ["db"]


def test_what_is_there_is_opened_without_a_write(tmp_path: Path) -> None:
    """A disk may be full, and the server is started again."""
    open_file(tmp_path / "db", SCHEMA).close()
    again = open_file(tmp_path / "db", SCHEMA)
    assert (tmp_path / "db-wal").stat().st_size == 0
    again.close()


def test_a_database_is_made_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="cannot be opened"):
        open_file(tmp_path / "db", Schema(version=3, tables=f"{TABLES} CREATE nothing"))
    assert sqlite3.connect(tmp_path / "db").execute("SELECT name FROM sqlite_master").fetchall() == []


def test_only_its_owner_may_read_a_file(tmp_path: Path) -> None:
    open_file(tmp_path / "new" / "db", SCHEMA).close()
    assert (tmp_path / "new" / "db").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_is_told_to_who_asks_and_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    database = open_memory(SCHEMA)
    database.connection.execute("PRAGMA max_page_count = 3")
    for _ in range(2):
        with pytest.raises(ServerError, match="is full") as caught, database.transaction() as transaction:
            transaction.execute("INSERT INTO things VALUES (?)", ("x" * 100_000,))
        assert (caught.value.report.status, caught.value.report.retry_after) == (503, 1.0)
        with database.transaction() as transaction:
            transaction.execute("SELECT * FROM things").fetchall()
    with database.transaction() as transaction:
        transaction.execute("INSERT INTO things VALUES ('small')")
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    database.close()


def test_a_faulty_statement_is_no_fault_of_the_disk() -> None:
    database = open_memory(SCHEMA)
    with pytest.raises(sqlite3.IntegrityError), database.transaction() as transaction:
        transaction.execute("INSERT INTO things VALUES (NULL)")
    database.close()

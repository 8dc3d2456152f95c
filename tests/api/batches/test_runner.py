"""The runner of batches: lines that come to nothing, disks that are full, and batches beside one another."""

import asyncio
import contextlib
import io
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pippin.api.batches import runner as rooms
from pippin.api.batches.openai import read_lines
from pippin.api.batches.runner import BatchRunner, Reply
from pippin.api.batches.store import LEFT_OVER, Batch, BatchStore, Counts, Line
from pippin.core.errors import ServerError

Asked = Callable[[Batch, bytes], Awaitable[Reply]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BatchStore]:
    made = BatchStore(tmp_path / "files", megabytes=1)
    yield made
    made.close()


def added(store: BatchStore, name: str, lines: int, *, expires_in: float = 60) -> Batch:
    text = [f"{name} {number}".encode() for number in range(lines)]
    file = store.add_file("", f"{name}.jsonl", "batch", [line + b"\n" for line in text])
    now = int(time.time())
    batch = Batch(
        id=f"batch_{name}",
        owner="",
        endpoint="/v1/chat/completions",
        input_file=file.id,
        created_at=now,
        expires_at=now + int(expires_in),
    )
    places = [sum(len(each) + 1 for each in text[:number]) for number in range(lines)]
    store.add_batch(
        batch, [Line(number, str(number), places[number], len(text[number])) for number in range(lines)]
    )
    return batch


def replied(status: int, body: bytes = b"{}") -> Reply:
    return Reply("request", status, body)


def made(store: BatchStore, ask: Asked, concurrency: int = 2) -> BatchRunner:
    return BatchRunner(store, ask, lambda: 0, concurrency)


async def ended(store: BatchStore, batch: Batch) -> Batch:
    async with asyncio.timeout(10):
        while not (now := store.batch("", batch.id)).ended:  # noqa: ASYNC110 - the store tells nobody
            await asyncio.sleep(0.02)
    return now


def run(store: BatchStore, ask: Asked, *batches: Batch, until: Batch | None = None) -> Batch:
    """Do the batches until one of them has ended, the first if none is named."""

    async def go() -> Batch:
        runner = made(store, ask)
        for batch in batches:
            runner.add(batch)
        try:
            return await ended(store, until or batches[0])
        finally:
            await runner.close()

    return asyncio.run(go())


def test_a_batch_whose_model_has_no_room_leaves_the_others_theirs(store: BatchStore) -> None:
    async def ask(batch: Batch, text: bytes) -> Reply:
        return replied(503 if text.startswith(b"stuck") else 200)

    stuck, other = added(store, "stuck", 8), added(store, "other", 8)
    assert run(store, ask, stuck, other, until=other).status == "completed"


def test_a_server_that_stops_begins_no_more_lines(store: BatchStore) -> None:
    asked: list[bytes] = []
    batch = added(store, "many", 50)

    async def go() -> None:
        async def ask(batch: Batch, text: bytes) -> Reply:
            asked.append(text)
            if len(asked) == 3:
                runner.rest()
            return replied(200)

        runner = made(store, ask, concurrency=1)
        runner.add(batch)
        async with asyncio.timeout(10):
            while len(asked) < 3:  # noqa: ASYNC110 - the runner tells nobody
                await asyncio.sleep(0.01)
        await asyncio.sleep(2 * rooms.PAUSE)
        await runner.close()

    asyncio.run(go())
    assert len(asked) == 3


def test_a_batch_expires_though_its_model_never_has_room(store: BatchStore) -> None:
    async def ask(batch: Batch, text: bytes) -> Reply:
        return replied(429)

    batch = run(store, ask, added(store, "stuck", 2, expires_in=1))
    assert batch.status == "expired"
    assert batch.counts is not None
    assert batch.counts.open == 2
    assert batch.error_file is not None


def test_a_line_that_comes_to_nothing_for_a_while_is_answered_then(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(rooms, "PAUSE", 0.01)
    tries: dict[bytes, int] = {}

    async def ask(batch: Batch, text: bytes) -> Reply:
        tries[text] = tries.get(text, 0) + 1
        return replied((503, 500, 424, 503, 500, 200)[tries[text] - 1])

    batch = run(store, ask, added(store, "late", 1))
    assert (batch.status, batch.error_file) == ("completed", None)
    assert tries == {b"late 0": 6}


def test_a_line_at_which_the_server_always_fails_is_an_error_after_some_tries(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(rooms, "PAUSE", 0.01)
    asked: list[bytes] = []

    async def ask(batch: Batch, text: bytes) -> Reply:
        asked.append(text)
        return replied(500)

    batch = run(store, ask, added(store, "broken", 1))
    assert batch.counts is not None
    assert (batch.counts.failed, len(asked)) == (1, rooms.TRIES)


def test_a_line_that_cannot_be_asked_is_an_error_and_not_asked_for_ever(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(rooms, "PAUSE", 0.01)

    async def ask(batch: Batch, text: bytes) -> Reply:
        raise RuntimeError("a fault of ours")

    batch = run(store, ask, added(store, "odd", 1))
    assert batch.counts is not None
    assert (batch.status, batch.counts.failed) == ("completed", 1)


def test_only_the_blanks_of_json_stand_around_a_line(tmp_path: Path) -> None:
    line = b'{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {}}'
    (tmp_path / "in").write_bytes(b"\t" + line + b" \r\n\n")
    assert len(read_lines(io.BytesIO((tmp_path / "in").read_bytes()), "/v1/embeddings")[0]) == 1
    [marked], _ = read_lines(io.BytesIO(b"\xef\xbb\xbf" + line + b"\n"), "/v1/embeddings")
    assert (marked.start, marked.length) == (3, len(line) + 1)
    (tmp_path / "in").write_bytes(b"\v" + line)  # a reader of JSON knows no vertical tabs
    lines, [problem] = read_lines(io.BytesIO((tmp_path / "in").read_bytes()), "/v1/embeddings")
    assert (lines, problem.code) == ([], "invalid_json_line")


def test_results_are_written_once_the_disk_has_room_again(
    store: BatchStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "FAULT_SECONDS", 0.05)
    add_file, faults = store.add_file, [True, False, True]

    def full(*given: Any, **more: Any) -> Any:
        if given[2] == "batch_output" and faults and faults.pop():
            raise ServerError("overloaded", "The file can't be stored: No space left on device.")
        return add_file(*given, **more)

    async def ask(batch: Batch, text: bytes) -> Reply:
        return replied(400 if text.endswith(b"1") else 200)

    first, second = added(store, "first", 2), added(store, "second", 1)
    monkeypatch.setattr(store, "add_file", full)
    batch = run(store, ask, first, second)
    with contextlib.closing(BatchStore(tmp_path / "files", megabytes=1)) as store:
        assert batch.status == store.batch("", second.id).status == "completed"
        assert {file.id for file in store.files("") if file.purpose == "batch_output"} == {
            batch.output_file,
            batch.error_file,
            store.batch("", second.id).output_file,
        }


def test_an_answer_is_kept_until_the_database_has_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "WRITE_AGAIN", 0.02)
    store, asked = BatchStore(tmp_path / "files", megabytes=1), 0

    async def ask(batch: Batch, text: bytes) -> Reply:
        nonlocal asked
        asked += 1
        pages = store.database.connection.execute("PRAGMA page_count").fetchone()[0]
        limit(pages)
        asyncio.get_running_loop().call_later(0.2, limit, 1 << 20)
        return replied(200, b'{"text": "%s"}' % (b"x" * 100_000))

    def limit(pages: int) -> None:
        store.database.connection.execute(f"PRAGMA max_page_count = {pages}")

    batch = run(store, ask, added(store, "full", 1))
    assert (batch.status, batch.counts, asked) == ("completed", Counts(1, 1, 0), 1)


def test_a_file_that_the_database_has_no_room_for_leaves_no_bytes(tmp_path: Path) -> None:
    store = BatchStore(tmp_path / "files", megabytes=1)
    store.add_file("", "a", "batch", [b"a"])
    store.database.connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(ServerError, match="full"):
        store.add_file("", "n" * 100_000, "batch", [b"b"])
    assert [path.read_bytes() for path in (tmp_path / "files" / "files").iterdir()] == [b"a"]
    store.close()


def test_bytes_that_a_server_left_when_it_died_are_swept(tmp_path: Path) -> None:
    store = BatchStore(tmp_path / "files", megabytes=1)
    kept = store.add_file("", "a", "batch", [b"a"])
    folder = tmp_path / "files" / "files"
    for name, age in (("file-left", 2 * LEFT_OVER), ("file-being-written", 0.0)):
        (folder / name).write_bytes(b"b")
        os.utime(folder / name, (time.time() - age,) * 2)
    os.utime(folder / kept.id, (0, 0))
    store.sweep()
    assert {path.name for path in folder.iterdir()} == {kept.id, "file-being-written"}
    store.close()


def test_a_closed_folder_takes_its_lock_no_more(tmp_path: Path) -> None:
    """A thread whose task was cancelled asks for the database after the server has closed it."""
    folder = BatchStore(tmp_path / "files", megabytes=1)
    assert folder.database is folder.database
    folder.close()
    with pytest.raises(ServerError, match="shutting down"):
        _ = folder.database
    next_one = BatchStore(tmp_path / "files", megabytes=1)
    assert next_one.database is not None
    next_one.close()


def test_a_folder_that_cannot_be_used_is_refused_for_the_same_reason_each_time(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("no folder")
    store = BatchStore(tmp_path / "files", megabytes=1)
    for _ in range(2):
        with pytest.raises(ServerError, match="--files-dir cannot be used: File exists") as caught:
            store.add_file("", "a", "batch", [b"a"])
        assert caught.value.report.status == 503
    (tmp_path / "files").unlink()
    (tmp_path / "files" / "batches.sqlite").mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(ServerError, match="cannot be opened: unable to open"):
            store.add_file("", "a", "batch", [b"a"])


def test_a_line_whose_file_is_gone_is_refused_without_the_place_of_the_file(tmp_path: Path) -> None:
    store = BatchStore(tmp_path / "files", megabytes=1)

    async def ask(batch: Batch, text: bytes) -> Reply:
        raise AssertionError("it cannot be read")

    batch = added(store, "gone", 1)
    (tmp_path / "files" / "files" / batch.input_file).unlink()
    done = run(store, ask, batch)
    with (
        contextlib.closing(BatchStore(tmp_path / "files", megabytes=1)) as opened,
        opened.open_file("", done.error_file or "") as file,
    ):
        told = file.read().decode()
    assert "No such file" in told
    assert str(tmp_path) not in told

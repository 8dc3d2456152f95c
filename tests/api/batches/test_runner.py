"""The runner of batches: lines that come to nothing, disks that are full, and batches beside one another."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pippin.api.batches import runner as rooms
from pippin.api.batches.inside import Reply
from pippin.api.batches.openai import OpenAIResults, read_lines
from pippin.api.batches.runner import BatchRunner
from pippin.api.batches.store import Batch, BatchStore, Line
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
        api="openai",
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


def replied(status: int) -> Reply:
    reply = Reply("request")
    reply.status, reply.body = status, b"{}"
    return reply


def made(store: BatchStore, ask: Asked, concurrency: int = 2) -> BatchRunner:
    return BatchRunner(store, ask, lambda: 0, lambda batch: OpenAIResults(), concurrency)


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
    assert len(read_lines(tmp_path / "in", "/v1/embeddings")[0]) == 1
    (tmp_path / "in").write_bytes(b"\v" + line)  # a reader of JSON knows no vertical tabs
    lines, [problem] = read_lines(tmp_path / "in", "/v1/embeddings")
    assert (lines, problem.code) == ([], "invalid_json_line")


def test_results_are_written_once_the_disk_has_room_again(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch
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
    assert batch.status == store.batch("", second.id).status == "completed"
    assert {file.id for file in store.files("") if file.purpose == "batch_output"} == {
        batch.output_file,
        batch.error_file,
        store.batch("", second.id).output_file,
    }

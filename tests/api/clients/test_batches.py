"""Files and batches through the real clients, over a socket against a worker that plays a script."""

import io
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from pippin.api.access.keys import KeyEntry, read_key_file
from pippin.api.batches import store
from tests.api.live_server import MODEL, live_server
from tests.clients import openai_of
from tests.running_server import running_process, running_server

SCRIPT: dict[str, Any] = {
    "rules": [
        {"when": {"user": "slow"}, "say": " ".join(["word"] * 4000), "gap": 0.02},
        {"when": {"user": "much"}, "say": "word " * 3000, "gap": 0.0},
        {"when": {"user": "refuse"}, "error": {"kind": "invalid_request", "message": "Not this."}},
    ]
}
SECONDS = 60.0


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all tests that ask nothing of what else it keeps."""
    folder = tmp_path_factory.mktemp("shared")
    with live_server(folder, SCRIPT, files_dir=str(folder / "files"), files_mb=4.0) as found:
        yield found


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[OpenAI]:
    with openai_of(address) as made:
        yield made


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[OpenAI]:
    """A client of a server that keeps nothing yet, and little."""
    folder = str(tmp_path / "files")
    with live_server(tmp_path, SCRIPT, files_dir=folder, files_mb=0.2) as found, openai_of(found) as made:
        yield made


def chat(number: int, text: str = "Hello", **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": f"{text} {number}"}], **fields}
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def jsonl(*lines: dict[str, Any]) -> io.BytesIO:
    return io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def uploaded(client: OpenAI, *lines: dict[str, Any]) -> str:
    return client.files.create(file=("in.jsonl", jsonl(*lines)), purpose="batch").id


def begun(client: OpenAI, *lines: dict[str, Any], endpoint: Any = "/v1/chat/completions") -> str:
    file = uploaded(client, *lines)
    return client.batches.create(input_file_id=file, endpoint=endpoint, completion_window="24h").id


def ended(client: OpenAI, batch_id: str) -> Any:
    deadline = time.monotonic() + SECONDS
    while (batch := client.batches.retrieve(batch_id)).status not in (
        "completed",
        "failed",
        "expired",
        "cancelled",
    ):
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
    return batch


def results(client: OpenAI, file: str | None) -> list[dict[str, Any]]:
    assert file is not None
    return [json.loads(line) for line in client.files.content(file).text.splitlines()]


def test_every_line_is_answered_once_and_in_order(client: OpenAI) -> None:
    batch = ended(client, begun(client, *map(chat, range(40))))
    assert batch.status == "completed"
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (
        40,
        40,
        0,
    )
    found = results(client, batch.output_file_id)
    assert [line["custom_id"] for line in found] == [f"line-{number}" for number in range(40)]
    said = [line["response"]["body"]["choices"][0]["message"]["content"] for line in found]
    assert said == [f"Hello {number}" for number in range(40)]
    assert batch.error_file_id is None


def test_lines_that_are_refused_stand_in_the_file_of_errors(client: OpenAI) -> None:
    lines = [chat(0), chat(1, "refuse"), chat(2, temperature=-5)]
    batch = ended(client, begun(client, *lines))
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 2)
    errors = results(client, batch.error_file_id)
    assert [(line["custom_id"], line["response"]["status_code"]) for line in errors] == [
        ("line-1", 400),
        ("line-2", 400),
    ]
    assert errors[1]["response"]["body"]["error"]["param"] == "temperature"


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"model": MODEL, "prompt": "Hello", "max_tokens": 4}),
        ("/v1/responses", {"model": MODEL, "input": "Hello"}),
        ("/v1/embeddings", {"model": MODEL, "input": "Hello"}),
    ],
)
def test_other_endpoints_are_answered_too(client: OpenAI, endpoint: str, body: dict[str, Any]) -> None:
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}
    batch = ended(client, begun(client, line, endpoint=endpoint))
    [found] = results(client, batch.output_file_id)
    assert found["response"]["status_code"] == 200


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([b"no json"], "invalid_json_line"),
        ([b'{"custom_id": "a"}'], "invalid_json_line"),
        ([json.dumps(chat(0)).encode(), json.dumps(chat(0)).encode()], "duplicate_custom_id"),
        ([json.dumps(chat(0) | {"url": "/v1/embeddings"}).encode()], "mismatched_url"),
        ([json.dumps(chat(0, stream=True)).encode()], "invalid_request"),
        ([b""], "empty_file"),
    ],
)
def test_a_file_that_holds_no_requests_fails_with_the_line(
    client: OpenAI, lines: list[bytes], code: str
) -> None:
    file = client.files.create(file=("in.jsonl", b"\n".join(lines)), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert batch.errors.data[0].code == code


def test_a_cancelled_batch_keeps_what_was_answered(client: OpenAI) -> None:
    batch_id = begun(client, chat(0), *(chat(number, "slow") for number in range(1, 30)))
    deadline = time.monotonic() + SECONDS
    while not client.batches.retrieve(batch_id).request_counts.completed:  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    client.batches.cancel(batch_id)
    batch = ended(client, batch_id)
    assert batch.status == "cancelled"
    assert [line["custom_id"] for line in results(client, batch.output_file_id)] == ["line-0"]


def test_a_live_request_is_answered_while_a_batch_runs(client: OpenAI) -> None:
    batch_id = begun(client, *(chat(number, "slow") for number in range(20)))
    begin = time.monotonic()
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "now"}])
    assert answer.choices[0].message.content == "now"
    assert time.monotonic() - begin < 10
    client.batches.cancel(batch_id)


def test_files_are_listed_read_and_deleted(empty: OpenAI) -> None:
    file = uploaded(empty, chat(0))
    assert [each.id for each in empty.files.list()] == [file]
    assert json.loads(empty.files.content(file).text) == chat(0)
    assert empty.files.delete(file).deleted
    with pytest.raises(openai.NotFoundError):
        empty.files.retrieve(file)


def test_the_disk_of_one_owner_is_bounded(client: OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.files.create(file=("in.jsonl", b"x" * (5 << 20)), purpose="batch")
    assert caught.value.status_code == 413
    assert "--files-mb" in str(caught.value)


def test_many_small_files_take_their_room_too(empty: OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        for _ in range(60):  # 60 bytes, but 60 files
            empty.files.create(file=("in.jsonl", b"x"), purpose="batch")
    assert caught.value.status_code == 413


def test_answers_of_batches_take_room_until_they_are_deleted(empty: OpenAI) -> None:
    lines = [chat(number, "much", max_tokens=3500) for number in range(40)]  # 600 kB of answers
    full = ended(empty, begun(empty, *lines))
    refused = results(empty, full.error_file_id)
    assert 0 < len(refused) < 40
    assert all("--files-mb" in line["response"]["body"]["error"]["message"] for line in refused)
    empty.files.delete(full.output_file_id)
    assert ended(empty, begun(empty, *lines[:2])).request_counts.completed == 2


def test_ended_batches_are_kept_without_their_lines_and_not_for_ever(
    empty: OpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MOST_ENDED", 2)
    done = [begun(empty, chat(number)) for number in range(2)]
    for each in done:
        assert ended(empty, each).request_counts.completed == 1
    with sqlite3.connect(tmp_path / "files" / "batches.sqlite") as database:
        assert database.execute("SELECT COUNT(*) FROM lines").fetchone() == (0,)
    for number in range(3, 6):
        assert ended(empty, begun(empty, chat(number))).request_counts.completed == 1
    new = begun(empty, chat(9))
    listed = [each.id for each in empty.batches.list()]
    assert len(listed) == 3
    assert new in listed


def test_a_key_reaches_by_batches_what_it_reaches_by_itself(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("a: {key: one, endpoints: [/files, /batches, /embeddings]}\n")
    options = {"files_dir": str(tmp_path / "files"), "api_key_file": str(keys)}
    with (
        live_server(tmp_path, SCRIPT, **options) as address,
        openai_of(address, "one") as client,
        pytest.raises(openai.PermissionDeniedError, match="/chat/completions"),
    ):
        begun(client, chat(0))


def test_an_endpoint_that_is_withdrawn_while_a_batch_runs_is_closed_to_its_lines(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("a: {key: one}\n")
    options = {"files_dir": str(tmp_path / "files"), "api_key_file": str(keys), "batch_concurrency": 1}
    with live_server(tmp_path, SCRIPT, **options) as address, openai_of(address, "one") as client:
        batch_id = begun(client, *(chat(number, "slow", max_tokens=40) for number in range(30)))
    keys.write_text("a: {key: one, endpoints: [/files, /batches]}\n")
    with live_server(tmp_path, SCRIPT, **options) as address, openai_of(address, "one") as client:
        batch = ended(client, batch_id)
        assert batch.error_file_id is not None
        codes = {line["response"]["status_code"] for line in results(client, batch.error_file_id)}
        assert codes == {403}


def opens(client: OpenAI) -> bool:
    try:
        client.models.list()
    except openai.AuthenticationError:
        return False
    return True


def wait_until(so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_key_that_is_withdrawn_by_a_hangup_opens_nothing_more_not_even_to_a_batch_that_runs(
    tmp_path: Path,
) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("a: {key: one}\nb: {key: two, role: admin}\n")
    script = tmp_path / "scripted.script.json"
    script.write_text(json.dumps(SCRIPT))
    folder = tmp_path / "files"
    words = (str(script), "--api-key-file", str(keys), "--files-dir", str(folder), "--batch-concurrency", "1")
    with running_process(tmp_path, *words) as serving, openai_of(serving.address, "one") as client:
        lines = [chat(number, "slow", max_tokens=20) for number in range(20)]
        for line in lines:
            line["body"]["model"] = "scripted"
        batch_id = begun(client, *lines)
        while not client.batches.retrieve(batch_id).request_counts.completed:  # type: ignore[union-attr]
            time.sleep(0.05)
        keys.write_text("b: {key: two, role: admin}\n")
        serving.process.send_signal(signal.SIGHUP)
        wait_until(lambda: not opens(client))
        keys.write_text("a: {key: one}\nb: {key: two, role: admin}\n")
        with sqlite3.connect(folder / "batches.sqlite") as database:
            refused_or_ended = (
                "SELECT 1 FROM lines WHERE status = 403 UNION SELECT 1 FROM batches WHERE ended"
            )
            wait_until(lambda: database.execute(refused_or_ended).fetchone() is not None)
        serving.process.send_signal(signal.SIGHUP)
        wait_until(lambda: opens(client))
        batch = ended(client, batch_id)
        assert 0 < batch.request_counts.completed < len(lines)
        refused = results(client, batch.error_file_id)
    assert {line["response"]["status_code"] for line in refused} == {403}
    assert "is not known any more" in json.dumps(refused[0])


def test_the_guard_and_batches_hold_to_one_reading_of_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a file that is being changed might mean another thing to each."""
    keys = tmp_path / "keys.yaml"
    keys.write_text("a: {key: one}\n")
    read: list[Path] = []

    def counted(path: Path) -> list[KeyEntry]:
        read.append(path)
        return read_key_file(path)

    monkeypatch.setattr("pippin.api.access.keys.read_key_file", counted)
    with live_server(tmp_path, SCRIPT, files_dir=str(tmp_path / "files"), api_key_file=str(keys)):
        assert len(read) == 1


@pytest.mark.parametrize("purpose", ["fine-tune", "vision"])
def test_other_purposes_are_refused_by_name(client: OpenAI, purpose: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("in.jsonl", b"{}"), purpose=purpose)


def test_a_file_expires_when_its_upload_says(client: OpenAI) -> None:
    file = ("in.jsonl", b"{}")
    lasts: Any = {"anchor": "created_at", "seconds": 3600}
    stored = client.files.create(file=file, purpose="batch", expires_after=lasts)
    assert stored.expires_at is not None
    assert abs(stored.expires_at - stored.created_at - 3600) <= 1
    with pytest.raises(openai.BadRequestError, match=r"expires_after\[seconds\]"):
        client.files.create(file=file, purpose="batch", expires_after=lasts | {"seconds": 60})


def test_the_files_and_batches_of_another_key_are_not_found(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("a: {key: one, role: admin}\nb: {key: two}\n")
    options = {"files_dir": str(tmp_path / "files"), "api_key_file": str(keys)}
    with (
        live_server(tmp_path, SCRIPT, **options) as address,
        openai_of(address, "one") as first,
        openai_of(address, "two") as second,
    ):
        batch_id = begun(first, chat(0))
        assert ended(first, batch_id).status == "completed"
        assert list(second.batches.list()) == []
        for ask in (second.batches.retrieve, second.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                ask(batch_id)
        with pytest.raises(openai.NotFoundError):
            second.files.content(first.batches.retrieve(batch_id).input_file_id)


def test_a_batch_goes_on_after_a_restart(tmp_path: Path) -> None:
    options = {"files_dir": str(tmp_path / "files"), "batch_concurrency": 2}
    with live_server(tmp_path, SCRIPT, **options) as address, openai_of(address) as client:
        batch_id = begun(
            client, chat(0), *(chat(number, "slow") for number in (1, 2)), *map(chat, range(3, 9))
        )
        deadline = time.monotonic() + SECONDS
        while not client.batches.retrieve(batch_id).request_counts.completed:  # type: ignore[union-attr]
            assert time.monotonic() < deadline
            time.sleep(0.05)
    quick = {"rules": []}
    with live_server(tmp_path, quick, **options) as address, openai_of(address) as client:
        batch = ended(client, batch_id)
        found = results(client, batch.output_file_id)
        assert [line["custom_id"] for line in found] == [f"line-{number}" for number in range(9)]


def test_batches_of_messages_name_the_way_out(address: str) -> None:
    reply = httpx.post(f"{address}/v1/messages/batches", json={"requests": []})
    assert reply.status_code == 404
    assert "/v1/batches" in reply.json()["error"]["message"]


def test_a_second_server_on_the_same_folder_says_so(tmp_path: Path) -> None:
    folder = {"files_dir": str(tmp_path / "files")}
    with live_server(tmp_path, SCRIPT, **folder) as one, live_server(tmp_path, SCRIPT, **folder) as two:
        assert httpx.get(f"{one}/v1/files").status_code == 200
        refused = httpx.get(f"{two}/v1/files")
        assert refused.status_code == 503
        assert "--files-dir" in refused.json()["error"]["message"]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_thousand_lines_survive_kill_9_with_each_line_answered_once(tmp_path: Path) -> None:
    """`PIPPIN_BATCH_LINES` sets another number of lines."""
    count = int(os.environ.get("PIPPIN_BATCH_LINES", "10000"))
    folder = ("--files-dir", str(tmp_path / "files"), "--batch-concurrency", "16")
    seen = 0
    with running_server(tmp_path, "scripted", *folder, kill=True) as address, openai_of(address) as client:
        lines = [chat(number) for number in range(count)]
        for line in lines:
            line["body"]["model"] = "scripted"
        batch_id = begun(client, *lines)
        while seen < count // 3:
            seen = client.batches.retrieve(batch_id).request_counts.completed  # type: ignore[union-attr]
            time.sleep(0.05)
    with running_server(tmp_path, "scripted", *folder) as address, openai_of(address) as client:
        assert client.batches.retrieve(batch_id).request_counts.completed >= seen  # type: ignore[union-attr]
        while (batch := client.batches.retrieve(batch_id)).status != "completed":
            time.sleep(0.2)
        found = results(client, batch.output_file_id)
    assert [line["custom_id"] for line in found] == [f"line-{number}" for number in range(count)]
    said = [line["response"]["body"]["choices"][0]["message"]["content"] for line in found]
    assert said == [f"Hello {number}" for number in range(count)]

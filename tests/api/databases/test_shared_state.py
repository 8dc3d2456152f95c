"""Two servers over one PostgreSQL database, as their clients and their operator meet them."""

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.api.databases.server import PostgresServer
from tests.running_server import running_server
from tests.service.doubles import write_script

pytestmark = pytest.mark.long

Pair = tuple[openai.OpenAI, openai.OpenAI]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    return tmp_path


@pytest.fixture
def pair(folder: Path, postgres: PostgresServer | None) -> Iterator[Pair]:
    if postgres is None:
        pytest.skip("PostgreSQL is not installed")
    model = write_script(
        folder,
        {"when": {"user": "long"}, "say": "one two three " * 100, "gap": 0.2},
        {"when": {"user": "."}, "say": "one two three", "gap": 0.01},
    )
    words = (str(model), "--rate-limit", "40", "--api-key", "key")
    given = {"PIPPIN_STATE": postgres.address}
    with (
        running_server(folder / "a", *words, variables=given) as one,
        running_server(folder / "b", *words, variables=given) as other,
        openai.OpenAI(base_url=f"{one}/v1", api_key="key", max_retries=0) as first,
        openai.OpenAI(base_url=f"{other}/v1", api_key="key", max_retries=0) as second,
    ):
        yield first, second


def test_responses_files_batches_and_limits_are_those_of_both(
    pair: Pair, folder: Path, postgres: PostgresServer
) -> None:
    first, second = pair
    begun = first.responses.create(model="default", input="hello")
    gone_on = second.responses.create(model="default", input="and?", previous_response_id=begun.id)
    assert [item.id for item in first.responses.input_items.list(gone_on.id, order="asc")][:1]
    assert second.responses.retrieve(begun.id).output_text == "one two three"

    line = (
        '{"custom_id": "%d", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "default", '
    )
    line += '"messages": [{"role": "user", "content": "go"}]}}\n'
    text = "".join(line % number for number in range(20)).encode()
    file = first.files.create(file=("in.jsonl", text), purpose="batch")
    assert second.files.content(file.id).read() == text
    batch = second.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    deadline = time.monotonic() + 30
    while (now := first.batches.retrieve(batch.id)).status != "completed":
        assert time.monotonic() < deadline, now
        time.sleep(0.1)
    assert now.request_counts is not None
    assert now.request_counts.completed == 20
    assert len(second.files.content(now.output_file_id or "").text.splitlines()) == 20

    left = [
        int(each.chat.completions.with_raw_response.create(model="default", messages=[{"role": "user", "content": "x"}])
            .headers["x-ratelimit-remaining-requests"])
        for each in (first, second, first, second)
    ]  # fmt: skip
    assert left == sorted(left, reverse=True)
    assert 2 <= left[0] - left[-1] <= 3  # one comes back in 1.5 seconds

    logs = (folder / "a" / "server.log").read_text() + (folder / "b" / "server.log").read_text()
    assert f"shared at 127.0.0.1:{postgres.port}" in logs
    assert "secret" not in logs
    settings = httpx.get(f"{first.base_url!s}settings", headers={"authorization": "Bearer key"}).text
    assert "secret" not in settings


def test_a_background_response_is_polled_and_cancelled_at_the_other_server(pair: Pair) -> None:
    first, second = pair
    done = second.responses.create(model="default", input="hello", background=True)
    long = second.responses.create(model="default", input="long", background=True)
    assert first.responses.retrieve(long.id).status in ("queued", "in_progress")
    deadline = time.monotonic() + 20
    while (now := first.responses.retrieve(done.id)).status != "completed":
        assert now.status in ("queued", "in_progress")
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert now.output_text == "one two three"
    time.sleep(1.5)
    assert first.responses.retrieve(long.id).status in ("queued", "in_progress")
    assert first.responses.cancel(long.id).status == "cancelled"
    other = second.responses.create(model="default", input="long", background=True)
    first.responses.delete(other.id)
    for each in pair:
        with pytest.raises(openai.NotFoundError):
            each.responses.retrieve(other.id)


def test_while_the_database_is_away_chats_go_on_and_what_needs_it_is_503(
    pair: Pair, folder: Path, postgres: PostgresServer
) -> None:
    begun = pair[0].responses.create(model="default", input="hello")
    postgres.stop()
    try:
        for each in pair:
            began = time.monotonic()
            said = each.chat.completions.create(model="default", messages=[{"role": "user", "content": "x"}])
            assert said.choices[0].message.content == "one two three"
            assert each.responses.create(model="default", input="hello").output_text == "one two three"
            for needs in (
                lambda each=each: each.responses.create(
                    model="default", input="x", previous_response_id=begun.id
                ),
                lambda each=each: each.responses.retrieve(begun.id),
                lambda each=each: each.files.list(),
                lambda each=each: each.batches.list(),
                lambda each=each: each.conversations.create(),
            ):
                with pytest.raises(openai.InternalServerError, match="can't be reached now") as caught:
                    needs()
                assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (503, "1")
            assert time.monotonic() - began < 10
    finally:
        postgres.start()
    time.sleep(1.1)
    assert pair[1].responses.retrieve(begun.id).output_text == "one two three"
    assert pair[0].conversations.create().id
    logs = (folder / "a" / "server.log").read_text() + (folder / "b" / "server.log").read_text()
    assert not re.findall("Traceback|password|secret", logs)


def test_with_a_database_that_is_silent_nothing_hangs(pair: Pair, postgres: PostgresServer) -> None:
    taken: list[float] = []

    def ask(client: openai.OpenAI) -> None:
        began = time.monotonic()
        client.chat.completions.create(model="default", messages=[{"role": "user", "content": "x"}])
        taken.append(time.monotonic() - began)

    with postgres.frozen():
        threads = [threading.Thread(target=ask, args=(pair[n % 2],)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == 12
        assert max(taken) < 12
        ask(pair[0])
        assert taken[-1] < 4

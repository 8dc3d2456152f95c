"""Responses in the background after the server's process is gone."""

import time
from pathlib import Path

import httpx
import pytest

from pippin.api.stored_responses.response_store import ResponseStore
from pippin.config.options.server import ServerOptions
from tests.running_server import running_process
from tests.service.doubles import write_script

WORDS = "one two three four five six seven eight nine ten"


@pytest.mark.parametrize("kill", [True, False])
def test_a_response_in_the_background_goes_on_with_the_next_server_under_its_id(
    tmp_path: Path, kill: bool
) -> None:
    model = write_script(tmp_path, {"when": {"user": "count"}, "say": WORDS, "gap": 0.2})
    flags = [str(model), "--response-store", str(tmp_path / "responses.db"), "--drain-timeout", "0.1"]
    with running_process(tmp_path, *flags, kill=kill) as server:
        body = {"model": "model", "input": "count", "background": True}
        begun = httpx.post(f"{server.address}/v1/responses", json=body, timeout=60).json()
        while begun["status"] == "queued":
            time.sleep(0.05)
            begun = httpx.get(f"{server.address}/v1/responses/{begun['id']}", timeout=60).json()
    with running_process(tmp_path, *flags) as server:
        deadline = time.monotonic() + 30
        while (found := read(server.address, begun["id"]))["status"] != "completed":
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
        assert found["output"][-1]["content"][0]["text"] == WORDS
    with running_process(tmp_path, *flags) as server:  # it has ended
        assert read(server.address, begun["id"])["status"] == "completed"
        assert "begun again" not in (tmp_path / "server.log").read_text()


def read(address: str, id: str) -> dict[str, list[dict[str, list[dict[str, str]]]]]:
    return httpx.get(f"{address}/v1/responses/{id}", timeout=60).json()  # type: ignore[no-any-return]


def test_what_another_server_runs_is_left_to_it(tmp_path: Path) -> None:
    store = ResponseStore(ServerOptions(response_store=str(tmp_path / "r.db")))
    store.begins("me", "a", b"{}")
    store.begins("me", "b", b"{}")
    store.ends("me", "b")
    with store.database.transaction() as transaction:
        transaction.execute("UPDATE running SET process = 1")
    assert store.take_unfinished() == []
    with store.database.transaction() as transaction:
        transaction.execute("UPDATE running SET process = ?", (2**22 + 1,))
    assert store.take_unfinished() == [("me", "a", b"{}")]
    store.ends("me", "a")
    assert store.take_unfinished() == []
    store.database.close()

"""`--restart`: what survives when the server's process is killed, and that nothing is left over."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from pippin.cli.verbs.serve import APART
from tests.running_server import Running, running_process
from tests.service.doubles import write_script

WORDS = "one two three four five six seven eight nine ten"
WITHIN = 30.0  # seconds, on a machine that is shared


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    model = write_script(tmp_path, {"when": {"user": "count"}, "say": WORDS, "gap": 0.2})
    with running_process(tmp_path, str(model), "--restart", "--drain-timeout", "0.1") as running:
        yield running


def until(found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WITHIN
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def below(server: Running) -> list[psutil.Process]:
    """The server's own process, then its workers."""
    return psutil.Process(server.process.pid).children(recursive=True)


def gone(processes: list[psutil.Process]) -> bool:
    return not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in processes)


def test_what_was_stored_and_what_runs_in_the_background_outlive_the_servers_process(
    server: Running, tmp_path: Path
) -> None:
    with httpx.Client(base_url=server.address, timeout=WITHIN) as client:
        kept = client.post("/v1/responses", json={"model": "model", "input": "count"}).json()
        conversation = client.post(
            "/v1/conversations", json={"items": [{"role": "user", "content": "a"}]}
        ).json()
        lines = '{"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"input": "count"}}'
        file = client.post("/v1/files", files={"file": ("a.jsonl", lines)}, data={"purpose": "batch"}).json()
        asked = {"input_file_id": file["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
        batch = client.post("/v1/batches", json=asked).json()
        body = {"model": "model", "input": "count", "background": True}
        running = client.post("/v1/responses", json=body).json()
        until(lambda: client.get(f"/v1/responses/{running['id']}").json()["status"] == "in_progress")
    before = below(server)
    before[0].kill()
    begun = time.monotonic()
    # Whoever connects now is not refused, but waits until the next server accepts.
    assert httpx.get(f"{server.address}/health", timeout=WITHIN).status_code == 200
    assert time.monotonic() - begun < 5  # well under a second where nothing else runs
    with httpx.Client(base_url=server.address, timeout=WITHIN) as client:
        assert client.get(f"/v1/responses/{kept['id']}").json() == kept
        assert len(client.get(f"/v1/conversations/{conversation['id']}/items").json()["data"]) == 1
        until(lambda: client.get(f"/v1/responses/{running['id']}").json()["status"] == "completed")
        until(lambda: client.get(f"/v1/batches/{batch['id']}").json()["status"] == "completed")
        assert client.get(f"/v1/batches/{batch['id']}").json()["request_counts"]["completed"] == 1
    until(lambda: gone(before))
    after = below(server)
    assert "ended by signal 9; it is started again" in (tmp_path / "server.log").read_text()
    server.process.terminate()
    assert server.process.wait(WITHIN) == 0
    assert gone(after)


def test_a_server_that_is_killed_again_and_again_answers_within_a_second(server: Running) -> None:
    took = []
    for _ in range(3):
        time.sleep(APART)
        own = below(server)[0]
        begun = time.monotonic()
        own.kill()
        assert httpx.get(f"{server.address}/health", timeout=WITHIN).status_code == 200
        took.append(time.monotonic() - begun)
        used = psutil.Process(server.process.pid).children()[0].cpu_times()
        assert used.user + used.system < 0.25, "it imports again what its parent has"
    assert min(took[1:]) < 1.0  # one of them: the machine is shared


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_server_ends_with_its_parent(server: Running, number: int) -> None:
    all_of_it = below(server)
    assert len(all_of_it) == 2
    server.process.send_signal(number)
    assert server.process.wait(WITHIN) == (0 if number == signal.SIGINT else -signal.SIGKILL)
    until(lambda: gone(all_of_it))
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.address}/health")


def test_a_port_in_use_is_told_and_nothing_is_started_again(server: Running, tmp_path: Path) -> None:
    port = server.address.rpartition(":")[2]
    home = tmp_path / "second"
    home.mkdir()
    with (
        pytest.raises(AssertionError, match="in use"),
        running_process(home, "--restart", "--port", port, "--lazy-load"),
    ):
        pass

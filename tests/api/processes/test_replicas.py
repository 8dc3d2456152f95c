"""One server of several API processes over several replicas, or over ranks, asked over its socket."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.api.processes.test_several_processes import Stream, get, processes, say, until
from tests.cli.serving import Serving, Terminal
from tests.engines.tiny_models import tiny_model
from tests.runtime.replicas.test_processes import FAKE_SSH

SCRIPT = {
    "rules": [
        {"when": {"user": "for ever"}, "say": ["word "] * 4000, "gap": 0.01},
        {"when": {"user": "a while"}, "say": ["word "] * 12, "gap": 0.1},
    ]
}
WHILE = "word " * 12


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A replica here and one that a command reaches."""
    terminal = Terminal(tmp_path_factory.mktemp("home"))
    (terminal.home / "live.script.json").write_text(json.dumps(SCRIPT))
    (ssh := terminal.home / "ssh").write_text(FAKE_SSH.format(folder=terminal.home))
    reached = f"sh {ssh} {{machine}} {sys.executable} -m pippin worker {{model}} {{path}}"
    words = ("live.script.json", "--api-processes", "2", "--enable-metrics", "--machine-command", reached)
    with terminal.serving(*words, "--replica-machines", "127.0.0.1,127.0.0.2") as server:
        for number in (1, 2):
            server.wait_for(rf"(API process {number} is ready)")
        server.wait_for("(live is ready)")
        yield server
        streams = [Stream(server, "a while") for _ in range(4)]
        server.process.terminate()
        assert [stream.ended() for stream in streams] == [None] * 4
        assert server.ended() == 0
        assert "Traceback" not in server.output.read_text()


def workers(serving: Serving) -> list[psutil.Process]:
    """The replicas' own processes."""
    below = psutil.Process(serving.process.pid).children(recursive=True)
    return [each for each in below if each.cmdline()[1:3] == ["-m", "pippin.worker"]]


@pytest.mark.long
def test_a_replica_that_dies_under_several_processes_costs_no_whole_answer(serving: Serving) -> None:
    until(lambda: len(workers(serving)) == 2)
    for number in range(2):  # here, then there
        until(lambda: all(each["state"] == "ready" for each in processes(serving)))
        with ThreadPoolExecutor(8) as threads:
            answers = [threads.submit(say, serving, "a while") for _ in range(8)]
            until(lambda: sum(each["requests"] for each in processes(serving)) == 8)
            time.sleep(0.5)
            victims = sorted(workers(serving), key=lambda each: each.ppid() != serving.process.pid)
            victims[number].kill()
            assert {each.result().strip() for each in answers} == {WHILE.strip()}  # type: ignore[union-attr]
        until(lambda: len(workers(serving)) == 2, 30)
        time.sleep(1.0)  # until it has loaded


def test_streams_of_a_killed_process_leave_every_replica(serving: Serving) -> None:
    streams = [Stream(serving) for _ in range(8)]
    until(lambda: len(get(serving, "/v1/status").json()["requests"]) == 8)
    os.kill(processes(serving)[0]["pid"], signal.SIGKILL)
    until(lambda: sum(stream.end is not None for stream in streams) == 4)
    assert say(serving, "hi") == "hi"
    until(lambda: len(get(serving, "/v1/status").json()["requests"]) == 4)
    for stream in streams:
        stream.leave()
    until(lambda: not get(serving, "/v1/status").json()["requests"])
    until(lambda: all(each["state"] == "ready" for each in processes(serving)))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ranks_answer_several_processes_and_a_lost_one_ends_their_requests_with_a_sentence(
    tmp_path: Path,
) -> None:
    tiny_model("llama", tmp_path / "models" / "tiny", num_key_value_heads=4)
    asked = {"model": "tiny", "prompt": "abcabc", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    words = ("tiny", "--model-dir", str(tmp_path / "models"), "--api-processes", "2")

    def text(server: Serving) -> str:
        reply = httpx.post(f"{server.address}/v1/completions", json=asked, timeout=60)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["choices"][0]["text"])

    with Terminal(tmp_path).serving(*words) as server:
        server.wait_for("(tiny is ready)", 60)
        expected = text(server)
    with Terminal(tmp_path).serving(*words, "--ranks", "2") as server:
        server.wait_for("(tiny is ready)", 120)
        until(lambda: all(each["state"] == "ready" for each in processes(server)), 60)
        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(lambda _: text(server), range(4))) == {expected}
        long = asked | {"max_tokens": 3000, "stream": True}
        with httpx.stream("POST", f"{server.address}/v1/completions", json=long, timeout=60) as stream:
            lines = stream.iter_lines()
            assert next(line for line in lines if line.startswith("data:"))
            workers(server)[-1].kill()
            assert "died" in "\n".join(lines)
        assert text(server) == expected

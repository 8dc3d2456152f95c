"""A group of ranks as real processes: what clients get, and what they are told when a rank is lost."""

import os
import re
import signal
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.engines.tiny_models import tiny_model
from tests.running_server import running_server

ASKED = {"model": "tiny", "prompt": "abcabc", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def served(folder: Path) -> Path:
    return tiny_model("llama", folder / "models" / "tiny", num_key_value_heads=4)


def said(client: httpx.Client, **more: object) -> str:
    reply = client.post("/v1/completions", json={**ASKED, **more})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


def ranks_of(home: Path) -> list[psutil.Process]:
    """The processes of the server's ranks, rank 0 first."""
    log = (home / "server.log").read_text()
    assert log
    mine = [
        each
        for each in psutil.process_iter(["environ", "cmdline"])
        if "pippin.worker" in (each.info["cmdline"] or [])
        and (each.info["environ"] or {}).get("HOME") == str(home)
    ]
    return sorted(mine, key=lambda each: int(each.environ()["MLX_RANK"]))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_ends_the_group_which_starts_again(tmp_path: Path, number: signal.Signals) -> None:
    served(tmp_path)
    words = ["tiny", "--model-dir", str(tmp_path / "models"), "--ranks", "2"]
    with running_server(tmp_path, *words) as address, httpx.Client(base_url=address, timeout=120) as client:
        expected = said(client)
        lost = ranks_of(tmp_path)
        assert len(lost) == 2
        with client.stream(
            "POST", "/v1/completions", json={**ASKED, "max_tokens": 3000, "stream": True}
        ) as stream:
            lines = stream.iter_lines()
            assert next(line for line in lines if line.startswith("data:"))
            os.kill(lost[1].pid, number)
            started = time.monotonic()
            rest = "\n".join(lines)
        assert time.monotonic() - started < 30
        error = re.search(r"The process of model 'tiny' \(rank [01] of 2\) died: [^\"]*", rest)
        assert error is not None, rest[-500:]
        if number == signal.SIGKILL:
            assert "(rank 1 of 2) died: it was ended by signal 9" in error[0]
        assert said(client) == expected
        assert not {each.pid for each in ranks_of(tmp_path)} & {each.pid for each in lost}
    psutil.wait_procs(lost, timeout=10)
    assert ranks_of(tmp_path) == []


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_ranks_do_not_have_is_refused_by_name(tmp_path: Path) -> None:
    served(tmp_path)
    words = ["tiny", "--model-dir", str(tmp_path / "models"), "--ranks", "3"]
    with running_server(tmp_path, *words, ready=r"could not|cannot be split") as address:
        reply = httpx.post(f"{address}/v1/completions", json=ASKED, timeout=120)
    assert reply.status_code == 424
    assert "3 ranks cannot share evenly" in reply.json()["error"]["message"]

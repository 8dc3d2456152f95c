"""One model over several nodes of a cluster: where its ranks are, and what becomes of them."""

import contextlib
import re
from pathlib import Path

import httpx
import psutil
import pytest

from tests.engines.tiny_models import tiny_model
from tests.running_server import running_server
from tests.runtime.cluster.nodes import end, joined, nodes, wait_for, workers

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ASKED = {"prompt": "abcabc", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def said(url: str, **more: object) -> str:
    reply = httpx.post(f"{url}/v1/completions", json={**ASKED, **more}, timeout=120)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


@pytest.fixture(scope="module")
def model(home: Path) -> Path:
    return tiny_model("llama", home / "models" / "tiny", num_key_value_heads=4)


@pytest.fixture(scope="module")
def expected(home: Path, model: Path) -> str:
    with running_server(home, str(model), "--cpu-kernels", "off") as url:
        return said(url)


def test_a_group_starts_again_where_there_is_room(
    home: Path, address: str, model: Path, expected: str
) -> None:
    words = (str(model), "--cluster", address, "--ranks", "2")
    with contextlib.ExitStack() as more:
        second = more.enter_context(joined(home, address))
        wait_for("the second node", lambda: nodes(home, address) == 2)
        with running_server(home, *words) as url:
            assert said(url) == expected
            lost = workers(home)
            assert len(lost) == 2
            with httpx.stream(
                "POST",
                f"{url}/v1/completions",
                json={**ASKED, "max_tokens": 400, "stream": True},
                timeout=60,
            ) as stream:
                lines = stream.iter_lines()
                assert next(line for line in lines if line.startswith("data:"))
                lost[1].kill()
                rest = "\n".join(lines)
            # The request runs again in the next group, and its stream goes on where it stopped.
            assert "[DONE]" in rest
            assert '"error":' not in rest
            log = (home / "server.log").read_text()
            error = re.search(r"The process of model 'tiny' \(rank [01] of 2, on [0-9.]+\) died: .*", log)
            assert error is not None, log
            assert "it was ended by signal 9, SIGKILL" in error[0]
            psutil.wait_procs(lost, timeout=20)
            assert said(url) == expected
            # A machine without which there is no room, until another one joins.
            end(second)
            psutil.wait_procs(workers(home), timeout=30)
            more.enter_context(joined(home, address))
            wait_for("an answer from the third node", lambda: answers(url) == expected)
        wait_for("the end of all ranks", lambda: not workers(home))


def answers(url: str) -> str | None:
    reply = httpx.post(f"{url}/v1/completions", json=ASKED, timeout=120)
    return str(reply.json()["choices"][0]["text"]) if reply.status_code == 200 else None


def test_a_model_that_no_machine_holds_is_split_over_ranks(
    home: Path, address: str, demo_model: Path
) -> None:
    asked = {"prompt": "The three primary colours are", "max_tokens": 24}
    with running_server(home, str(demo_model), "--cpu-kernels", "off") as url:
        alone = said(url, **asked)
    # In float32, as ranks compute on a CPU, it takes 0.75 GB: more than any node has. Three ranks share its 9 heads.
    words = (str(demo_model), "--cluster", address, "--cpu-kernels", "off")
    with joined(home, address), joined(home, address):
        wait_for("the third node", lambda: nodes(home, address) == 3)
        with running_server(home, *words, "--ranks", "3") as url:
            assert said(url, **asked) == alone
            assert len(workers(home)) == 3


def test_more_ranks_than_the_cluster_has_machines_for_are_told_so(
    home: Path, address: str, model: Path
) -> None:
    words = (str(model), "--cluster", address, "--ranks", "2")
    with running_server(home, *words, ready="cannot run") as url:
        reply = httpx.post(f"{url}/v1/completions", json=ASKED, timeout=120)
    assert reply.status_code == 424
    assert "The cluster has not 2 machines that have each" in reply.json()["error"]["message"]
    wait_for("the end of what asked", lambda: not workers(home))

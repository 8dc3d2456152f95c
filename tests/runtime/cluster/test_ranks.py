"""One model over several nodes of a cluster: where its ranks are, and what becomes of them."""

import os
import signal
from pathlib import Path

import httpx
import psutil
import pytest

from tests.engines.tiny_models import tiny_model
from tests.running_server import running_server
from tests.runtime.cluster.nodes import joined, nodes, wait_for, workers

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


def test_a_group_starts_again_elsewhere(home: Path, address: str, model: Path, expected: str) -> None:
    words = (str(model), "--cluster", address, "--ranks", "2")
    with joined(home, address) as second:
        wait_for("the second node", lambda: nodes(home, address) == 2)
        with running_server(home, *words) as url:
            assert said(url) == expected
            ranks = workers(home)
            assert len(ranks) == 2
            os.kill(ranks[1].pid, signal.SIGKILL)
            psutil.wait_procs(ranks, timeout=20)
            assert said(url) == expected
        wait_for("the end of all ranks", lambda: not workers(home))

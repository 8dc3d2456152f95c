"""`pippin serve` as on a Mac, from its start to its end, where Pippin's modules find no more than macOS has."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from pippin.cli.begin import allow_many
from tests.as_on_a_mac.mac import Mac
from tests.as_on_a_mac.process import SITE
from tests.as_on_a_mac.site.darwin import CHOSEN, MOST_FILES
from tests.engines.tiny_models import tiny_model
from tests.running_server import ROOT, running_process

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@pytest.fixture
def few_files() -> Iterator[None]:
    """A limit of open files as macOS gives it to what is started."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    yield
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # which mlx-lm lowers when it is imported
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], hard), hard))


def test_a_server_starts_answers_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_files: None
) -> None:
    real, home = tmp_path / "private", tmp_path / "home"
    real.mkdir()
    home.symlink_to(real, target_is_directory=True)  # as `/tmp` is on macOS
    tiny_model("llama", home / "tiny", mac=Mac())
    monkeypatch.setenv(CHOSEN, "16 bfloat16")
    with running_process(home, str(home / "tiny"), ready="is ready after|could not be loaded") as running:
        process = psutil.Process(running.process.pid)
        assert process.rlimit(psutil.RLIMIT_NOFILE)[0] > 256
        with httpx.Client(base_url=running.address, timeout=60) as client:
            whole = client.post("/v1/chat/completions", json=CHAT)
            assert whole.json()["usage"]["completion_tokens"] == 4, whole.text
            streamed = client.post("/v1/chat/completions", json=CHAT | {"stream": True})
            assert streamed.text.endswith("data: [DONE]\n\n"), streamed.text
        [kept] = real.glob(".cache/pippin/run/*.json")
        assert json.loads(kept.read_text())["log"] == str(real / "server.log")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0
    said = (real / "server.log").read_text()
    assert "Traceback" not in said
    assert "within" in said


FORKED = """
import os, urllib.request
from pippin.cli.verbs.serve import supervise
from pippin.config.options.server import ServerOptions
from pippin.config.settings import Settings

parent = os.getpid()
supervise(Settings(server=ServerOptions()), [])
if os.getpid() != parent:
    print(urllib.request.getproxies_environment(), flush=True)
    os._exit(0)
"""
FOUND = """
from pippin.config import accelerator
from pippin.engines import device
from pippin.engines.cpu import blas
print(accelerator.accelerator(), accelerator.has_cpu_kernels(), device.platform.system(), blas.platform.system())
for name in ("sched_setaffinity", "memfd_create"):
    assert not hasattr(accelerator.os, name), name
blas.processor_flags()
from pippin.runtime.workers import death
print(death.starved())
"""


def test_as_many_files_are_allowed_as_macos_lets_a_process_have(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def setting(which: int, limits: tuple[int, int]) -> None:
        if limits[0] > MOST_FILES:
            raise ValueError("current limit exceeds maximum limit")
        taken.append((which, limits))

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", setting)
    allow_many()
    assert taken == [(resource.RLIMIT_NOFILE, (16_384, resource.RLIM_INFINITY))]


def run(code: str) -> list[str]:
    """The words that code prints as on a Mac."""
    places = os.pathsep.join((SITE, str(ROOT), str(ROOT / "src")))
    variables = os.environ | {CHOSEN: "16 bfloat16", "PYTHONPATH": places}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_pippins_modules_find_a_mac() -> None:
    assert run(FOUND) == ["metal", "False", "Darwin", "Linux", "0"]


def test_a_server_that_is_a_fork_never_asks_macos_for_its_proxies() -> None:
    assert run(FORKED) == ["{'no':", "'*'}"], (
        "where it asks, macOS ends it: github.com/python/cpython/issues/105912"
    )

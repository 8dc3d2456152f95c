"""`pippin worker`: which folder a worker that another machine starts runs the model of."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pippin.cli import local
from pippin.cli.verbs.machines import join
from pippin.config.errors import ConfigError
from pippin.config.load import load
from pippin.core.errors import ServerError
from tests.catalog.fake_hub import FakeHub, serving
from tests.catalog.folders import write_model


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without models."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return tmp_path


def fetched(model: str) -> Path:
    return Path(local.fetched(local.open_catalog(load()), model, "Fetching").path or "")


def test_a_model_that_is_not_here_is_fetched_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = write_model(here / "staged")
    with serving(FakeHub({path.name: path.read_bytes() for path in staged.iterdir()})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        folder = fetched("org/model")
    assert (folder / "config.json").read_bytes() == (staged / "config.json").read_bytes()
    assert fetched("org/model") == folder  # there is no hub any more


def test_a_folder_of_the_server_is_not_looked_for_on_the_hub(here: Path) -> None:
    with pytest.raises(ServerError) as raised:
        fetched("mine")
    assert raised.value.report.kind in ("model_not_found", "invalid_request")


@pytest.mark.parametrize("port", ["0", "8265", "10001", "18440", "52365", "70000"])
def test_a_port_that_ray_has_for_itself_is_refused_with_a_sentence(port: str) -> None:
    with pytest.raises(ConfigError, match=f"--port {port} cannot be the cluster's"):
        join.run(["--port", port])


FAKE_RAY = """#!/bin/sh
echo "Local node IP: 127.0.0.1"
{said}
sleep {seconds}
"""


@pytest.mark.parametrize(
    ("said", "words", "expected"),
    [
        ("sleep 0.2; echo 'Ray runtime started.'", ("--port", "6390"), "The cluster is ready, until Ctrl-C."),
        (
            "echo 'Ray runtime started.'",
            ("10.0.0.1:6379",),
            "This machine is ready: the cluster at 10.0.0.1:6379",
        ),
        ("echo 'No cluster answers.'", ("10.0.0.1:6379",), "No cluster answers."),
    ],
)
def test_join_says_when_the_machine_is_ready_or_what_ray_said(
    tmp_path: Path, said: str, words: tuple[str, ...], expected: str
) -> None:
    pytest.importorskip("ray")
    ray = tmp_path / "ray"
    ray.write_text(FAKE_RAY.format(said=said, seconds=0.2))
    ray.chmod(0o700)
    program = "\n".join(
        (
            "from pippin.cli.verbs import machines",
            f"machines._program = lambda: {str(ray)!r}",
            f"machines.join.run({list(words)!r})",
        )
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "RAY_AUTH_TOKEN": "0" * 64},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert expected in done.stdout
    assert ("Local node IP" in done.stdout) == (expected == "No cluster answers.")

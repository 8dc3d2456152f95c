"""`pippin worker`: which folder a worker that another machine starts runs the model of."""

from pathlib import Path

import pytest

from pippin.cli.verbs import join
from pippin.cli.verbs.worker import fetched
from pippin.config.errors import ConfigError
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

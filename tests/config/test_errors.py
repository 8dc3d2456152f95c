"""What a message tells people to type where something is not installed."""

import json
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from pippin.config.errors import install_command


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    install_command.cache_clear()
    yield
    install_command.cache_clear()


@pytest.mark.parametrize(
    ("origin", "prefix", "receipt", "command"),
    [
        (
            {"url": "file:///a%20clone", "dir_info": {"editable": True}},
            "/a clone/.venv",
            "",
            "make serve EXTRAS=vision",
        ),
        ({"url": "file:///clone", "dir_info": {"editable": True}}, "/env", "", 'pip install -e ".[vision]"'),
        (
            {"url": "file:///clone", "dir_info": {}},
            "/env",
            "",
            'pip install "pippin[vision] @ file:///clone"',
        ),
        (None, "/env", "", 'pip install "pippin[vision]"'),
        (None, "env", "uv-receipt.toml", 'uv tool install --force "pippin[vision]"'),
        (None, "env", "pipx_metadata.json", 'pipx install --force "pippin[vision]"'),
        (
            {"url": "file:///source", "dir_info": {}},
            "/opt/pippin",
            "",
            "docker build --build-arg EXTRAS=vision -f packaging/containers/Dockerfile -t pippin .",
        ),
    ],
    ids=["make", "clone", "folder", "index", "uv tool", "pipx", "container"],
)
def test_the_command_is_that_of_the_place(
    origin: object, prefix: str, receipt: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Installed(Distribution):
        def read_text(self, filename: str) -> str | None:
            assert filename == "direct_url.json"
            return None if origin is None else json.dumps(origin)

        def locate_file(self, path: object) -> Path:
            return tmp_path

    if receipt:
        (tmp_path / "env").mkdir()
        (tmp_path / "env" / receipt).touch()
    monkeypatch.setattr(
        "importlib.metadata.distributions", lambda name: [Installed()] if name == "pippin" else []
    )
    monkeypatch.setattr(sys, "prefix", str(tmp_path / prefix))
    assert install_command("vision") == command


def test_source_on_the_path_alone_has_a_command_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.distributions", lambda name: [])
    monkeypatch.setattr(sys, "prefix", "/env")
    assert install_command("vision") == 'pip install "pippin[vision]"'

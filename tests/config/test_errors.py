"""What a message tells people to type where something is not installed."""

import json
import sys
from pathlib import Path

import pytest

from pippin.config.errors import install_command


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
    if origin is not None:
        (tmp_path / "direct_url.json").write_text(json.dumps(origin))
    if receipt:
        (tmp_path / "env").mkdir()
        (tmp_path / "env" / receipt).touch()
    monkeypatch.setattr("pippin.config.errors.folders", lambda: {"pippin": tmp_path})
    monkeypatch.setattr(sys, "prefix", str(tmp_path / prefix))
    assert install_command("vision") == command


def test_source_on_the_path_alone_has_a_command_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pippin.config.errors.folders", dict)
    monkeypatch.setattr(sys, "prefix", "/env")
    assert install_command("vision") == 'pip install "pippin[vision]"'

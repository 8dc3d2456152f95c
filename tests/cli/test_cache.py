"""`pippin cache` without a server; with one it is tested beside the other verbs, in test_serve."""

import json
from pathlib import Path

import pytest

from pippin.cli.main import main

MODEL = "0123456789abcdef01234567"
BLOCK = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path / "pippin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A disk tier in a folder where somebody keeps a model, too."""
    found = tmp_path / "cache"
    for name in (
        f"{MODEL}/{BLOCK}.safetensors",
        f"{MODEL}/{BLOCK}-state.safetensors",
        "llama/model.safetensors",
    ):
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_bytes(b"12345")
    return found


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_folder_given_is_wiped_and_what_is_not_the_caches_stays(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "clear", "--cache-dir", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}: 2 files (10 B) are deleted.\n"
    assert files(folder) == ["llama/model.safetensors"]
    assert main(["cache", "clear", "--cache-dir", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"deleted": {str(folder): {"files": 0, "bytes": 0}}}


def test_without_a_server_the_configured_folders_are_wiped(
    home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIPPIN_CACHE_DIR", str(folder))
    assert main(["cache", "clear"]) == 0
    assert files(folder) == ["llama/model.safetensors"]
    (folder / MODEL / f"{BLOCK}.safetensors").write_bytes(b"1")
    monkeypatch.delenv("PIPPIN_CACHE_DIR")
    (home / "pippin.yaml").write_text(f"models: [{{path: m, cache_dir: {folder}}}]\n")
    assert main(["cache", "clear", "--config", "pippin.yaml"]) == 0
    assert files(folder) == ["llama/model.safetensors"]
    capsys.readouterr()


def test_the_files_are_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "show", "--cache-dir", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{folder}: 10 B"
    assert lines[2].split() == [MODEL, "2", "10", "B", "just", "now"]
    assert main(["cache", "show", "--cache-dir", str(folder), "--json"]) == 0
    [kept] = json.loads(capsys.readouterr().out)["folders"][str(folder)]
    assert (kept["name"], kept["files"], kept["bytes"]) == (MODEL, 2, 10)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "No server runs here, and no cache_dir is configured: name a folder with --cache-dir."),
        (
            ["--memory"],
            "No server runs here, and no cache_dir is configured: name a folder with --cache-dir.",
        ),
        (["--cache-dir", "/no/such/folder"], "There is no folder /no/such/folder."),
    ],
)
def test_where_there_is_nothing_to_clear_it_says_so(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "clear", *words]) == 1
    assert capsys.readouterr().err == f"pippin: {message} See `pippin cache --help`.\n"

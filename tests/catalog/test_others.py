"""Models of other programs: read where they lie, listed as theirs, and never written."""

import json
import os
from pathlib import Path

import pytest

from pippin.catalog import Catalog, CatalogRoots, default_roots
from pippin.cli.main import main
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.core.errors import ServerError
from tests.catalog.folders import write_hub_model, write_model
from tests.catalog.gguf_files import GgufFileBuilder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path / "pippin"))
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def roots(home: Path) -> CatalogRoots:
    return default_roots({}, home)


def ollama(folder: Path, manifest: str, *media: str) -> Path:
    """A model of Ollama, whose file is returned."""
    layers = [{"mediaType": f"application/vnd.ollama.image.{kind}", "digest": "sha256:0a"} for kind in media]
    path = folder / "manifests" / manifest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"layers": layers}))
    blob = folder / "blobs" / "sha256-0a"
    blob.parent.mkdir(exist_ok=True)
    return blob if blob.exists() else GgufFileBuilder().write(blob)


def sources(roots: CatalogRoots) -> dict[str, str]:
    return {entry.found.id: entry.found.source for entry in Catalog(ServerOptions(), roots).entries()}


def test_folders_of_other_programs_are_listed_as_theirs(home: Path, roots: CatalogRoots) -> None:
    write_model(home / ".lmstudio" / "models" / "org" / "one")
    write_model(home / ".cache" / "lm-studio" / "models" / "org" / "two")
    write_model(home / ".omlx" / "models" / "three")
    catalog = Catalog(ServerOptions(), roots)
    assert sources(roots) == {"org/one": "LM Studio", "org/two": "LM Studio", "three": "oMLX"}
    assert catalog.resolve("org/one").path == str(home / ".lmstudio" / "models" / "org" / "one")


def test_a_moved_folder_is_found(home: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "moved" / "org" / "one")
    (home / ".lmstudio").mkdir()
    (home / ".lmstudio" / "settings.json").write_text(
        json.dumps({"downloadsFolder": str(tmp_path / "moved")})
    )
    ollama(tmp_path / "ollama", "registry.ollama.ai/library/tiny/latest", "model")
    write_model(tmp_path / "studio" / "models" / "org" / "two")
    (home / ".lmstudio-home-pointer").write_text(f"{tmp_path / 'studio'}\n")
    write_model(tmp_path / "omlx" / "three")
    (home / ".omlx").mkdir()
    (home / ".omlx" / "settings.json").write_text(
        json.dumps({"model": {"model_dirs": [str(tmp_path / "omlx"), 5], "model_dir": None}})
    )
    roots = default_roots({"OLLAMA_MODELS": str(tmp_path / "ollama")}, home)
    found = {"org/one": "LM Studio", "org/two": "LM Studio", "three": "oMLX", "tiny:latest": "Ollama"}
    assert sources(roots) == found


def test_the_files_of_ollama_have_the_names_of_ollama(home: Path, roots: CatalogRoots) -> None:
    folder = home / ".ollama" / "models"
    ollama(folder, "registry.ollama.ai/library/tiny/latest", "model", "template", "projector")
    ollama(folder, "registry.ollama.ai/org/tiny/4b", "model")
    ollama(folder, "hf.co/org/tiny/Q4_0", "model")
    ollama(folder, "registry.ollama.ai/library/cloud/latest", "license")
    assert set(sources(roots)) == {"tiny:latest", "org/tiny:4b", "hf.co/org/tiny:Q4_0"}
    for name in ("tiny:latest", "tiny"):
        with pytest.raises(ServerError, match="`pippin import tiny:latest`"):
            Catalog(ServerOptions(), roots).resolve(name)
    assert main(["import", "tiny"]) == 0


def test_files_lie_below_the_folders_of_lm_studio_and_projectors_are_no_models(
    home: Path, roots: CatalogRoots
) -> None:
    folder = home / ".lmstudio" / "models" / "org" / "big"
    (folder / "Q4_0").mkdir(parents=True)
    for name in (
        "Q4_0/big-00001-of-00002",
        "Q4_0/big-00002-of-00002",
        "big-Q8_0",
        "big-mmproj-f16",
        "MMPROJ-big",
    ):
        (folder / f"{name}.gguf").touch()
    assert set(sources(roots)) == {"org/big/Q4_0/big-00001-of-00002", "org/big/big-Q8_0"}


def test_what_lies_beside_a_file_of_ollama_is_told(
    home: Path, roots: CatalogRoots, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = home / ".ollama" / "models"
    blob = ollama(folder, "registry.ollama.ai/org/tiny/4b", "model", "params", "projector", "license")
    assert main(["import", "org/tiny:4b"]) == 0
    assert "Without what lies beside it: params, projector." in capsys.readouterr().out
    for name, media, told in (
        ("tuned", ("model", "adapter"), "(model: 1, adapter: 1)"),
        ("cut", ("model", "model"), "(model: 2)"),
        ("arrays", ("tensor", "tensor", "json"), "(tensor: 2)"),
    ):
        ollama(folder, f"registry.ollama.ai/org/{name}/4b", *media)
        assert main(["list", "--json", name]) == 0
        assert told in capsys.readouterr().out
        assert main(["import", f"org/{name}:4b"]) == 1
        assert (
            f"org/{name}:4b is not one GGUF file but layers of Ollama's {told}, which are not"
            in capsys.readouterr().err
        )
    blob.unlink()
    for verb, name in (("import", "org/tiny:4b"), ("show", "org/tuned:4b")):
        assert main([verb, name]) == 1
        assert f"The file of {name} is missing: fetch it with Ollama again" in capsys.readouterr().err


def test_a_file_of_another_program_takes_no_part_of_a_name(home: Path, roots: CatalogRoots) -> None:
    ollama(home / ".ollama" / "models", "registry.ollama.ai/library/qwen3/latest", "model")
    write_hub_model(roots.hub, "org/qwen3-4bit")
    catalog = Catalog(ServerOptions(models=(ModelEntry(path="qwen3"),)), roots)
    assert catalog.resolve("qwen3").id == "org/qwen3-4bit"


def test_a_file_is_imported_by_its_name(
    home: Path, roots: CatalogRoots, capsys: pytest.CaptureFixture[str]
) -> None:
    blob = ollama(home / ".ollama" / "models", "registry.ollama.ai/org/tiny/4b", "model")
    file = home / ".lmstudio" / "models" / "org" / "tiny-GGUF" / "tiny-Q4_0.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(blob.read_bytes())
    (file.parent / "mmproj-tiny.gguf").touch()
    linked = roots.hub / "models--org--of-the-hub" / "snapshots" / "a0" / "Q4_0" / "hub.gguf"
    linked.parent.mkdir(parents=True)
    linked.symlink_to(blob)
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    assert main(["import", "org/tiny:4b"]) == 0
    assert main(["import", "org/tiny-GGUF/tiny-Q4_0"]) == 0
    assert main(["import", "org/of-the-hub/Q4_0/hub"]) == 0
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before
    capsys.readouterr()
    assert main(["list", "--json"]) == 0
    listed = {each["id"]: each["source"] for each in json.loads(capsys.readouterr().out)}
    assert listed == {
        "org-of-the-hub-q4_0-hub": "import",
        "org-tiny-4b": "import",
        "org-tiny-gguf-tiny-q4_0": "import",
        "org/of-the-hub/Q4_0/hub": "hub",
        "org/tiny-GGUF/tiny-Q4_0": "LM Studio",
        "org/tiny:4b": "Ollama",
    }
    # Its name with the other program is that of the import from now on.
    assert main(["show", "org/tiny:4b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "org-tiny-4b"


def test_hostile_folders_hold_up_nothing_and_are_left_out(home: Path, roots: CatalogRoots) -> None:
    folder = home / ".lmstudio" / "models" / "org"
    for name in ("one", "two\nlines", "\x1b[31mred", os.fsdecode(b"no\xfftext")):
        write_model(folder / name)
    for name in ("pipe", "endless", "of.gguf"):
        (folder / name).mkdir()
    os.mkfifo(folder / "pipe" / "config.json")
    os.mkfifo(folder / "pipe" / "file.gguf")
    (folder / "endless" / "config.json").symlink_to("/dev/zero")
    (folder / "one" / "inner.gguf").mkdir()
    (folder / "around").symlink_to(folder.parent)
    manifests = home / ".ollama" / "models" / "manifests" / "registry.ollama.ai" / "library"
    for name in ("pipe", "endless", "deep", "above", "others"):
        (manifests / name).mkdir(parents=True)
    os.mkfifo(manifests / "pipe" / "latest")
    (manifests / "endless" / "latest").symlink_to("/dev/zero")
    (manifests / "deep" / "latest").write_text("[" * 100_000)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": ".."}
    (manifests / "above" / "latest").write_text(json.dumps({"layers": [layer]}))
    (manifests / "others" / "latest").write_text(json.dumps({"layers": [5, {"mediaType": [], "digest": {}}]}))
    assert set(sources(roots)) == {"org/one", "org/pipe", "org/endless"}
    for name in ("org/pipe", "org/endless"):
        with pytest.raises(ServerError, match=r"config\.json .* is no ordinary file"):
            Catalog(ServerOptions(), roots).resolve(name)


def test_a_model_of_another_program_is_not_removed(home: Path, roots: CatalogRoots) -> None:
    folder = write_model(home / ".lmstudio" / "models" / "org" / "one")
    with pytest.raises(ServerError, match="among the models of LM Studio; delete it there"):
        Catalog(ServerOptions(), roots).remove("org/one")
    assert folder.exists()

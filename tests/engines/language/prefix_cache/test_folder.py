"""Which files are the prefix cache's own, and that no others are touched."""

import os
import time
from pathlib import Path

import pytest

from pippin.engines.language.prefix_cache.disk import STALE_SECONDS, cache_files, delete, model_folders

MODEL = "0123456789abcdef01234567"
BLOCK = "0123456789abcdef0123456789abcdef01234567"


def kept(folder: Path, name: str, *, age: float = 0.0) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"12345")
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def wipe(folder: Path) -> None:
    delete(file for model in model_folders(folder) for file in cache_files(model))


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        f"{BLOCK}.safetensors",
        "llama/model.safetensors",
        f"llama/{BLOCK}.safetensors",
        f"{MODEL}/model.safetensors",
        f"{MODEL}/{BLOCK}.json",
        f"{MODEL}/{BLOCK[:-1]}.safetensors",
        f"{MODEL}/.hidden",
        f"{MODEL.upper()}/{BLOCK}.safetensors",
        f"snapshots/{BLOCK}/model.safetensors",
    ],
)
def test_what_is_not_the_caches_stays(tmp_path: Path, name: str) -> None:
    path = kept(tmp_path, name, age=2 * STALE_SECONDS)
    wipe(tmp_path)
    assert path.exists()


def test_what_a_link_leads_to_stays(tmp_path: Path) -> None:
    path = kept(tmp_path / "elsewhere", f"{BLOCK}.safetensors")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / MODEL).symlink_to(path.parent, target_is_directory=True)
    wipe(tmp_path / "cache")
    assert path.exists()


def test_blocks_and_states_of_all_models_go(tmp_path: Path) -> None:
    for model in (MODEL, MODEL[::-1]):
        kept(tmp_path, f"{model}/{BLOCK}.safetensors")
        kept(tmp_path, f"{model}/{BLOCK}-state.safetensors")
    wipe(tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_a_server_is_writing_stays_unless_it_was_left_behind(tmp_path: Path) -> None:
    written = kept(tmp_path, f"{MODEL}/.{BLOCK}.12.0123abcd")
    left = kept(tmp_path, f"{MODEL}/.{BLOCK}-state.34.0123abcd", age=2 * STALE_SECONDS)
    wipe(tmp_path)
    assert written.exists()
    assert not left.exists()


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert model_folders(tmp_path / "nowhere") == []
    assert list(cache_files(tmp_path / "nowhere")) == []

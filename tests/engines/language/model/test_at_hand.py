"""Modules of a loaded model are found at Python's first look, which saves a part of each step's time."""

from pathlib import Path

import mlx.nn as nn
import pytest

from pippin.catalog.info import read_info
from pippin.core.models import WorkerSpec
from pippin.engines.language import open_engine, open_preparer
from pippin.engines.language.step.engine import LanguageEngine
from tests.as_on_a_mac.test_wired_memory import CHAT
from tests.engines.driving import no_progress, run
from tests.engines.tiny_models import tiny_model


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe", "qwen3_next"])
def test_no_step_looks_for_a_module_in_vain(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = WorkerSpec(info=read_info(tiny_model(architecture, tmp_path / "tiny"), kind="language"), threads=1)
    preparer = open_preparer(spec)
    engine = open_engine(spec, preparer, no_progress)
    assert isinstance(engine, LanguageEngine)
    job = preparer.prepare("one", CHAT)
    assert not isinstance(job, tuple)
    own, missed = nn.Module.__getattr__, []

    def noting(module: nn.Module, name: str) -> object:
        found = own(module, name)
        if isinstance(found, nn.Module | list):
            missed.append(name)
        return found

    monkeypatch.setattr(nn.Module, "__getattr__", noting)
    run(engine, job)
    assert missed == []
    engine.close()

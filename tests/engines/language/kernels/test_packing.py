"""Weights are packed as they are read from their files, and layers that were compared once are not compared again."""

import os
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.safetensors import find_header
from pippin.engines.cpu.kernels import why_missing
from pippin.engines.device import decide, find_facts
from pippin.engines.language.upstream.file_arrays import FileArray, Files
from tests.engines.language.kernels.test_kernel_decoder import loaded, quantised
from tests.engines.tiny_models import EXPERTS, tiny_model

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))

ON_A_CPU = decide(find_facts(), ModelOptions())
TOKENS = mx.arange(1, 9)[None]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"attention_bias": True}),
    ("gpt_oss", {}),
    ("qwen3_moe", {**EXPERTS, "head_dim": 16}),
    ("lfm2", {}),
]


@pytest.mark.parametrize("stored", ["4 bits", "dense"])
@pytest.mark.parametrize(("architecture", "changes"), CASES)
def test_weights_from_files_are_those_that_mlx_reads(
    tmp_path: Path, architecture: str, changes: dict[str, Any], stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_model(architecture, tmp_path / "model", **changes)
    model = loaded(quantised(folder) if stored == "4 bits" else folder, ON_A_CPU)
    monkeypatch.setattr(Files, "note", lambda *_: None)
    assert mx.array_equal(model(TOKENS), loaded(folder, ON_A_CPU)(TOKENS))


def test_mlx_reads_no_matrix_that_the_kernels_pack(tmp_path: Path) -> None:
    folder = quantised(tiny_model("llama", tmp_path / "model", hidden_size=256))
    loaded(folder, ON_A_CPU)  # and compares, by MLX
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    model = loaded(folder, ON_A_CPU)
    assert mx.get_peak_memory() - before < model.weight_bytes / 16


def test_layers_are_compared_by_the_first_start_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pippin.engines.language.kernels import decoder

    compared: list[str] = []
    monkeypatch.setattr(decoder, "require_agreement", lambda part, *_: compared.append(part))
    folder = tiny_model("llama", tmp_path / "model")
    loaded(folder, ON_A_CPU)
    assert compared
    compared.clear()
    loaded(folder, ON_A_CPU)
    assert not compared
    os.utime(folder / "model.safetensors", ns=(1, 1))
    loaded(folder, ON_A_CPU)
    assert compared


def test_rows_of_a_file_are_those_of_the_array(tmp_path: Path) -> None:
    numbers = np.arange(4 * 6 * 2, dtype=np.float16).reshape(4, 6, 2)
    path = tmp_path / "model.safetensors"
    mx.save_safetensors(str(path), {"before": mx.zeros((3, 5)), "a": mx.array(numbers)})
    header, files = find_header(path), Files()
    for name, array in mx.load(str(path)).items():  # type: ignore[union-attr]
        assert header is not None
        files.note(array, name, path, header)
    [found] = (lies for _, lies in files.values() if len(lies.shape) == 3)
    for rows in (slice(None), slice(1, 3), slice(3, 9), slice(2, 2), 0, 3):
        assert np.array_equal(found[rows], numbers[rows])
        assert found[rows].dtype == np.float16
    os.truncate(path, found.begin + numbers.nbytes - 2)
    with pytest.raises(ValueError, match="reshape"):
        found[3]


def test_a_matrix_of_many_pieces_is_packed_by_several_threads_as_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pippin_kernels import Matrix, matrix

    numbers = np.random.default_rng(0).standard_normal((16 * 9 + 5, 40)).astype(np.float32)
    numbers.tofile(tmp_path / "file")
    filed: Any = FileArray(tmp_path / "file", 0, numbers.dtype, numbers.shape)
    whole = Matrix.dense(numbers).weights
    monkeypatch.setattr(matrix, "PIECE", 2 * 16 * 40 * 4)
    assert np.array_equal(Matrix.dense(numbers).weights, whole)
    assert np.array_equal(Matrix.dense(filed).weights, whole)
    numbers[100, 3] = np.inf
    with pytest.raises(ValueError, match="not finite"):
        Matrix.dense(numbers)

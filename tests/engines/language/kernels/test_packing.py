"""Weights are packed as they are read from their files, and layers that were compared once are not compared again."""

import os
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.safetensors import find_header
from pippin.engines.cpu.kernels import why_missing
from pippin.engines.device import decide, find_facts
from pippin.engines.language.upstream.file_arrays import Files
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
    monkeypatch.setattr(decoder, "require_agreement", lambda part, *_: compared.append(part) or 0.0)
    folder = tiny_model("llama", tmp_path / "model")
    loaded(folder, ON_A_CPU)
    assert compared
    compared.clear()
    loaded(folder, ON_A_CPU)
    assert not compared
    os.utime(folder / "model.safetensors", ns=(1, 1))
    loaded(folder, ON_A_CPU)
    assert compared


def test_what_lies_in_a_file_stands_for_the_arrays_that_mlx_opened_and_for_no_others(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    layer = nn.QuantizedLinear(64, 32, bias=True)
    layer.scales = layer.scales.astype(mx.bfloat16)
    mx.save_safetensors(str(path), dict(layer.parameters()))
    header, opened, files = find_header(path), mx.load(str(path)), Files()
    assert header is not None
    assert isinstance(opened, dict)
    files.note(opened, path, header)
    layer.update({**opened, "biases": opened["biases"] * 1})
    files.leave_out(layer, nn.QuantizedLinear)
    assert [type(layer[name]) is mx.array for name in ("weight", "scales", "biases", "bias")] == [
        *(False, False),
        *(True, True),
    ]
    assert np.array_equal(layer.weight, np.array(opened["weight"]))
    assert np.array_equal(layer.scales, np.array(opened["scales"].view(mx.uint16)))


def test_a_matrix_of_many_pieces_is_packed_by_several_threads_as_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pippin_kernels import Matrix, matrix

    numbers = np.random.default_rng(0).standard_normal((16 * 9 + 5, 40)).astype(np.float32)
    whole = Matrix.dense(numbers).weights
    monkeypatch.setattr(matrix, "PIECE", 2 * 16 * 40 * 4)
    assert np.array_equal(Matrix.dense(numbers).weights, whole)
    numbers[100, 3] = np.inf
    with pytest.raises(ValueError, match="not finite"):
        Matrix.dense(numbers)

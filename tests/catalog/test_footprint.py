"""The estimate of a loaded model's memory."""

import json
import sys
from pathlib import Path
from typing import Literal

import pytest

from pippin.catalog import footprint, read_info
from pippin.catalog.footprint import (
    ENCODER_PROCESS_BYTES,
    IN_KERNELS,
    KERNEL_DECODERS,
    PROCESS_BYTES,
    weight_bytes,
)
from pippin.config.options.model import ModelOptions
from pippin.core.models import ModelInfo, ModelKind
from tests.catalog.folders import write_model, write_safetensors

Machine = Literal["cpu", "metal"]


def pretend(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    """A machine that runs weights in float32, without the kernels, or one that runs them as they are stored."""
    module = sys.modules["pippin.catalog.footprint"]  # the room's `footprint` is the function
    monkeypatch.setattr(module, "accelerator", lambda: machine)
    monkeypatch.setattr(module, "has_cpu_kernels", lambda: False)


def quantised(folder: Path) -> Path:
    settings = {"group_size": 32, "bits": 4, "b": {"group_size": 32, "bits": 8}}
    write_model(folder, {"model_type": "llama", "quantization": settings})
    write_safetensors(
        folder / "model.safetensors",
        {
            "a.weight": ("U32", [64, 8]),  # 64 x 64 values of 4 bits
            "a.scales": ("F16", [64, 2]),
            "a.biases": ("F16", [64, 2]),
            "b.weight": ("U32", [64, 16]),  # 64 x 64 values of 8 bits
            "b.scales": ("F16", [64, 2]),
            "b.biases": ("F16", [64, 2]),
            "norm.weight": ("BF16", [64]),
        },
    )
    return folder


def test_dequantised_weights_take_four_bytes_a_value(tmp_path: Path) -> None:
    assert weight_bytes(quantised(tmp_path / "m"), 4) == 4 * (2 * 64 * 64 + 64)


def test_stored_weights_take_what_the_file_has(tmp_path: Path) -> None:
    assert weight_bytes(quantised(tmp_path / "m"), None) == 64 * 8 * 4 + 64 * 16 * 4 + 4 * 64 * 2 * 2 + 128


@pytest.mark.parametrize(
    ("options", "machine", "counted"),
    [
        (ModelOptions(), "cpu", 33_024),
        (ModelOptions(), "metal", 7296),
        (ModelOptions(dtype="float32"), "metal", 8448),  # packed as they are, with wider scales and norms
        (ModelOptions(exact=True), "metal", 8448),
        (ModelOptions(dtype="stored"), "cpu", 7296),
        (ModelOptions(dtype="bfloat16"), "cpu", 7296),
    ],
)
def test_the_type_decides(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: ModelOptions,
    machine: Machine,
    counted: int,
) -> None:
    pretend(monkeypatch, machine)
    assert footprint(read_info(quantised(tmp_path / "m")), options) == PROCESS_BYTES + counted


@pytest.mark.parametrize("machine", ["metal", "cpu"])
def test_what_drafts_beside_the_model_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    pretend(monkeypatch, machine)
    folder, draft = (quantised(tmp_path / name) for name in "md")
    one = footprint(read_info(folder), ModelOptions()) - PROCESS_BYTES
    counted = footprint(read_info(folder), ModelOptions(draft_model_path=str(draft)))
    assert counted == PROCESS_BYTES + one * 2


def test_a_damaged_header_falls_back_to_the_file_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, "metal")
    folder = write_model(tmp_path / "m")
    for data in (b"\xff" * 8, b"\x02" + bytes(7) + b"[]", b"\x02" + bytes(7) + b"{"):
        (folder / "model.safetensors").write_bytes(data)
        assert footprint(read_info(folder), ModelOptions()) == PROCESS_BYTES + len(data)


@pytest.mark.parametrize(
    ("dtype", "method", "leaf", "values"),
    [
        ("F8_E4M3", "fp8", "weight", 32),
        ("I8", "compressed-tensors", "weight", 32),
        ("U8", "bitsandbytes", "weight", 64),
        ("I32", "gptq", "qweight", 8 * 32),
    ],
)
def test_what_other_tools_packed_counts_as_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, method: str, leaf: str, values: int
) -> None:
    pretend(monkeypatch, "cpu")
    config = {"model_type": "llama", "quantization_config": {"quant_method": method}}
    folder = write_model(tmp_path / "m", config)
    header = json.dumps({f"a.{leaf}": {"dtype": dtype, "shape": [8, 4], "data_offsets": [0, 32]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(128))
    wide = footprint(read_info(folder), ModelOptions()) - PROCESS_BYTES
    assert wide == 4 * values


def test_the_scripted_model_is_small() -> None:
    assert footprint(ModelInfo(id="scripted", kind="scripted"), ModelOptions()) < 100 * 1024**2


@pytest.mark.parametrize(
    ("kernels", "options", "packed"),
    [
        (True, ModelOptions(), True),
        (True, ModelOptions(dtype="float32"), True),
        (True, ModelOptions(cpu_kernels="off"), False),
        (True, ModelOptions(ranks=2), False),  # which the kernels do not compute
        (False, ModelOptions(), False),
    ],
)
def test_the_kernels_for_cpus_hold_weights_as_they_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: bool, options: ModelOptions, packed: bool
) -> None:
    module = sys.modules["pippin.catalog.footprint"]
    monkeypatch.setattr(module, "accelerator", lambda: "cpu")
    monkeypatch.setattr(module, "has_cpu_kernels", lambda: kernels)
    folder = quantised(tmp_path / "m")
    expected = int(weight_bytes(folder, None) * IN_KERNELS) if packed else weight_bytes(folder, 4)
    assert footprint(read_info(folder), options) == PROCESS_BYTES + expected
    other = write_model(tmp_path / "other", {"model_type": "mamba2"})
    assert footprint(read_info(other), options) == PROCESS_BYTES + weight_bytes(other, 4)


@pytest.mark.parametrize(
    ("architecture", "kind", "expected"),
    [
        ("bert", "embeddings", ENCODER_PROCESS_BYTES + 4 * 1500),
        ("bert", "reranking", ENCODER_PROCESS_BYTES + 4 * 1500),
        ("qwen3", "embeddings", PROCESS_BYTES + int(2 * 1500 * IN_KERNELS)),
        ("gemma3_text", "embeddings", PROCESS_BYTES + 4 * 1500),  # MLX runs EmbeddingGemma, in float32
        ("gemma3_text", "language", PROCESS_BYTES + int(2 * 1500 * IN_KERNELS)),
        ("lfm2", "embeddings", PROCESS_BYTES + 4 * 1500),
    ],
)
def test_what_embeds_counts_as_its_layers_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, kind: ModelKind, expected: int
) -> None:
    module = sys.modules["pippin.catalog.footprint"]
    monkeypatch.setattr(module, "accelerator", lambda: "cpu")
    monkeypatch.setattr(module, "has_cpu_kernels", lambda: True)
    folder = write_model(tmp_path / "m", {"model_type": architecture})
    arrays = {"embeddings.word_embeddings.weight": ("BF16", [100, 10]), "layer.weight": ("BF16", [50, 10])}
    write_safetensors(folder / "model.safetensors", arrays)
    info = ModelInfo(id="m", kind=kind, path=str(folder))
    assert footprint(info, ModelOptions()) == expected


def test_the_decoders_that_count_as_packed_are_those_that_the_kernels_run() -> None:
    pytest.importorskip("pippin_kernels", reason="the kernels are not built: make kernels")
    from mlx_lm.utils import MODEL_REMAPPING

    from pippin.engines.language.kernels.architectures import ARCHITECTURES

    modules = {MODEL_REMAPPING.get(name, name) for name in KERNEL_DECODERS}
    assert modules == {each.module for each in ARCHITECTURES}

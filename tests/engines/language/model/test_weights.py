"""Loading: what a broken or foreign folder is told, and the types that weights run in."""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import msgspec
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import quantize_model, save_model

from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.engines.language.model.weights import Reading, load_weights
from tests.engines.language.bench import PLAN
from tests.engines.tiny_models import tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_model("llama", tmp_path / "llama")


def load(folder: Path, *, trust: bool = False, plan=PLAN):  # type: ignore[no-untyped-def]
    info = ModelInfo(id="m", kind="language", path=str(folder), architecture="llama")
    return load_weights(info, plan, lambda *_: None, Reading(trust_remote_code=trust))


def config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refusal(folder: Path, **how: object) -> str:
    with pytest.raises(ServerError) as caught:
        load(folder, **how)
    assert caught.value.report.kind == "load_failed"
    return caught.value.report.message


def test_code_in_the_folder_is_not_run_without_trust(folder: Path) -> None:
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    config(folder, model_file="evil.py")
    assert "--trust-remote-code" in refusal(folder)
    with pytest.raises(SystemExit, match="ran"):
        load(folder, trust=True)


def test_a_folder_without_safetensors_says_what_to_do(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    message = refusal(folder)
    assert ".bin" in message
    assert "convert" in message


def test_missing_shards_are_named(folder: Path) -> None:
    names = {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert "model-00002-of-00002.safetensors of 2 files is missing" in refusal(folder)


def test_weights_of_another_shape_point_to_a_newer_mlx_lm(folder: Path) -> None:
    weights = mx.load(str(folder / "model.safetensors"))
    weights.pop("model.norm.weight")
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    assert "newer mlx-lm" in refusal(folder)


def test_an_unknown_architecture_points_to_a_newer_mlx_lm(folder: Path) -> None:
    config(folder, model_type="tomorrow")
    assert "newer mlx-lm" in refusal(folder)


def test_a_broken_config_is_a_refusal(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    assert "config.json" in refusal(folder)


def test_a_truncated_file_is_a_refusal(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert (
        f"model.safetensors of the model 'm' is cut off: {len(whole) - 1} of {len(whole)} bytes"
        in refusal(folder)
    )
    path.write_bytes(whole[:5])
    assert "cannot be loaded" in refusal(folder)


def test_too_large_is_refused_with_the_numbers(folder: Path) -> None:
    assert "GiB" in refusal(folder, plan=msgspec.structs.replace(PLAN, memory_limit=1000))


def test_quantised_weights_are_widened_on_a_cpu_and_kept_elsewhere(folder: Path, tmp_path: Path) -> None:
    model, settings = load(folder)
    settings = json.loads((folder / "config.json").read_text())
    model, settings = quantize_model(model, settings, 32, 4)
    target = tmp_path / "quantised"
    target.mkdir()
    save_model(target, model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, target)
    (target / "config.json").write_text(json.dumps(settings))
    tokens = mx.array([[1, 2, 3]])
    wide, _ = load(target)
    assert not any(isinstance(module, nn.QuantizedLinear) for module in wide.modules())
    assert all(array.dtype == mx.float32 for _, array in tree_flatten(wide.parameters()))
    kept, _ = load(target, plan=msgspec.structs.replace(PLAN, run_type=None, dequantize=False))
    assert any(isinstance(module, nn.QuantizedLinear) for module in kept.modules())
    assert mx.allclose(wide(tokens), kept(tokens), atol=1e-3)
    half, _ = load(target, plan=msgspec.structs.replace(PLAN, run_type="bfloat16", dequantize=False))
    assert half(tokens).dtype == mx.bfloat16


def test_rope_parameters_mean_what_rope_theta_and_rope_scaling_do(folder: Path) -> None:
    tokens, scaling = mx.array([[5, 90, 31, 7, 140, 18]]), {"rope_type": "linear", "factor": 4.0}
    config(folder, rope_theta=5e5, rope_scaling=scaling)
    expected = load(folder)[0](tokens)
    config(folder, rope_theta=None, rope_scaling=None, rope_parameters={"rope_theta": 5e5, **scaling})
    assert mx.array_equal(load(folder)[0](tokens), expected)


def test_rotary_settings_that_a_class_leaves_out_are_named(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path / "llama")
    config(folder, rope_parameters={"rope_theta": 5e5, "partial_rotary_factor": 0.5, "rope_type": "default"})
    assert "partial_rotary_factor 0.5 is not read" in refusal(folder)

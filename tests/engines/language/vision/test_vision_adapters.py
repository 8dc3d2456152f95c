"""Adapters on vision-language models, in the forms that mlx-vlm and mlx-lm write, judged by mlx-vlm."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from pippin.engines.language.vision.model import VisionModel
from tests.engines.language.vision.tiny_vision_models import picture, tiny_vision_model
from tests.engines.language.vision.vision_bench import VisionBench

SHOWN = picture(60, 28, 1)
LAYER = "language_model.model.layers.{}.self_attn.q_proj"
OLD: dict[str, Any] = {"rank": 4, "alpha": 2.0, "dropout": 0.0}
NEW: dict[str, Any] = {
    "fine_tune_type": "lora",
    "num_layers": 2,
    "lora_parameters": {"rank": 4, "scale": 0.5, "dropout": 0.0, "keys": [LAYER.format(n) for n in range(2)]},
}


def adapter(folder: Path, config: dict[str, Any], names: tuple[str, str], layer: str = LAYER) -> Path:
    folder.mkdir()
    mx.random.seed(5)
    pairs = {
        f"{layer.format(number)}.{name}": mx.random.normal(shape)
        for number in range(2)
        for name, shape in zip(names, ((64, 4), (4, 64)), strict=True)
    }
    mx.save_safetensors(str(folder / "adapters.safetensors"), pairs)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("config", "names"), [(OLD, ("A", "B")), (NEW, ("lora_a", "lora_b"))], ids=["old", "new"]
)
def test_adapters_of_mlx_vlm_answer_as_there(
    config: dict[str, Any], names: tuple[str, str], tmp_path: Path
) -> None:
    from mlx_vlm.trainer.peft.utils import apply_lora_layers
    from mlx_vlm.utils import load_model

    base = tiny_vision_model("qwen2_5_vl", tmp_path / "qwen2_5_vl")
    folder = adapter(tmp_path / "adapter", config, names)
    plain = VisionBench(base)
    bench = VisionBench(base, adapter_path=str(folder))
    answer = bench.run(bench.job("a", SHOWN, "What?"))[0]["a"]
    assert answer != plain.alone(plain.job("a", SHOWN, "What?"))
    inner = apply_lora_layers(load_model(base), folder)
    inner.eval()
    plain.model = VisionModel(inner)
    assert answer == plain.judged("What?", [SHOWN])


def test_requests_choose_among_adapters_of_the_language_model_alone(tmp_path: Path) -> None:
    base = tiny_vision_model("qwen2_5_vl", tmp_path / "qwen2_5_vl")
    names = ("lora_a", "lora_b")
    whole = adapter(tmp_path / "whole", NEW, names)
    alone = adapter(tmp_path / "alone", NEW, names, LAYER.removeprefix("language_model."))
    bench = VisionBench(base, adapters={"whole": str(whole), "alone": str(alone)})
    jobs = [
        bench.job("none", SHOWN, "What?"),
        bench.job("whole", SHOWN, "What?", adapter="whole"),
        bench.job("alone", SHOWN, "What?", adapter="alone"),
    ]
    found, _ = bench.run(*jobs)
    assert found["whole"] == found["alone"] != found["none"]


@pytest.mark.float32
def test_a_copy_of_the_embedding_is_for_the_text_around_pictures(tmp_path: Path) -> None:
    base, merged = (tiny_vision_model("qwen2_5_vl", tmp_path / name) for name in ("base", "merged"))
    weights: Any = mx.load(str(merged / "model.safetensors"))
    name = next(each for each in weights if each.endswith("embed_tokens.weight"))
    assert any(each.endswith("lm_head.weight") for each in weights)
    copy = mx.random.normal(weights[name].shape)
    mx.save_safetensors(str(merged / "model.safetensors"), {**weights, name: copy}, {"format": "mlx"})
    folder = tmp_path / "adapter"
    folder.mkdir()
    stored = {"base_model.model.model.language_model.embed_tokens.weight": copy}
    mx.save_safetensors(str(folder / "adapter_model.safetensors"), stored)
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "modules_to_save": ["embed_tokens"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    bench, other = VisionBench(base, adapters={"one": str(folder)}), VisionBench(merged)
    jobs = [bench.job("none", SHOWN, "What?"), bench.job("one", SHOWN, "What?", adapter="one")]
    found, _ = bench.run(*jobs)
    assert found["one"] == other.run(other.job("one", SHOWN, "What?"))[0]["one"] != found["none"]

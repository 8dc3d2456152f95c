"""Modules packed in unlike bits are read by the bits of their arrays, however config.json names them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from pippin.core.models import ModelInfo
from pippin.engines.language.model.weights import load_weights
from tests.engines.language.bench import PLAN
from tests.engines.language.vision.tiny_vision_models import tiny_vision_model
from tests.engines.tiny_models import TinyModels

Json = dict[str, Any]
TOKENS = mx.array([[5, 90, 31, 7, 40, 18]])
MOST = {"group_size": 32, "bits": 4, "mode": "affine"}
FEW = {"group_size": 32, "bits": 6}


def repacked(source: Path, tell: Callable[[Json, list[str]], Json]) -> tuple[Path, Path]:
    """The folder with its projections packed, the queries' in more bits, and one with the numbers that this stands
    for. `tell` gets config.json and the names of the modules in more bits."""
    arrays = mx.load(str(source / "model.safetensors"))
    assert isinstance(arrays, dict)
    packed, numbers, wider = dict(arrays), dict(arrays), []
    for name, array in arrays.items():
        path = name.removesuffix(".weight")
        if not path.endswith(("q_proj", "k_proj", "o_proj")) or "vis" in name:
            continue
        bits = 6 if path.endswith("q_proj") else 4
        wider += [path] if bits == 6 else []
        words, scales, biases = mx.quantize(array, 32, bits)
        packed |= {name: words, f"{path}.scales": scales, f"{path}.biases": biases}
        numbers[name] = mx.dequantize(words, scales, biases, 32, bits)
    assert wider
    plain = Path(shutil.copytree(source, source.with_name("plain")))
    mx.save_safetensors(str(plain / "model.safetensors"), numbers)
    mx.save_safetensors(str(source / "model.safetensors"), packed)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(tell(config, wider)))
    return source, plain


def logits(folder: Path) -> mx.array:
    info = ModelInfo(id="m", kind="language", path=str(folder), architecture=folder.name)
    model, _ = load_weights(info, PLAN, lambda *_: None)
    found: mx.array = model(TOKENS, model.make_cache() if hasattr(model, "make_cache") else None)
    return found


def named(rename: Callable[[str], str]) -> Callable[[Json, list[str]], Json]:
    def tell(config: Json, wider: list[str]) -> Json:
        return {**config, "quantization": {**MOST, **{rename(path): FEW for path in wider}}}

    return tell


def below(prefix: str) -> Callable[[Json, list[str]], Json]:
    """Names that begin with `prefix` before those of layers."""
    return named(lambda path: f"{prefix}layers.{path.partition('layers.')[2]}")


def in_the_text_part(config: Json, wider: list[str]) -> Json:
    text = config.get("text_config")
    return {**config, "text_config": {**(text or {}), "quantization": MOST}}


SPELLINGS = {
    "as stored": named(str),
    "as the library has them": below("language_model.model."),
    "as published": below("model.language_model."),
    "as the text model has them": below("model."),
    "bare": below(""),
    "none of any module": named(lambda path: f"elsewhere.{path}"),
    "by another number": lambda config, wider: {**config, "quantization": {"group_size": 64, "bits": 8}},
    "without the usual numbers": lambda config, wider: {**config, "quantization_config": {**FEW}},
    "in the text part": in_the_text_part,
    "nowhere": lambda config, wider: config,
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3", "llama"])
def test_the_arrays_tell_the_bits_of_each_module(
    family: str, spelling: str, tiny_models: TinyModels, tmp_path: Path
) -> None:
    if family in ("qwen2_5_vl", "gemma3"):
        source = tiny_vision_model(family, tmp_path / family)
    else:
        source = Path(shutil.copytree(tiny_models(family), tmp_path / family))
    folder, plain = repacked(source, SPELLINGS[spelling])
    assert mx.allclose(logits(folder), logits(plain), atol=1e-4)

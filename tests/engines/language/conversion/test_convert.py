"""Conversions of tiny checkpoints, beside what mlx-lm makes of them and what the plain model says."""

import json
import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model, quantize_model

from pippin.config.options.model import ModelOptions
from pippin.core.errands import Conversion, Converted, Quantization, Step
from pippin.core.errors import ServerError
from pippin.engines.device import decide, find_facts
from pippin.engines.language.conversion import convert as conversion
from pippin.engines.language.conversion.perplexity import perplexity_of, predict, sample, sample_rows
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.language.vision import checkpoint
from tests.engines.language.vision.tiny_vision_models import tiny_vision_model
from tests.engines.tiny_models import tiny_model

FOUR = Quantization(bits=4, group_size=32)


def converted(
    source: Path, target: Path, quantization: Quantization | None = FOUR, **asked: Any
) -> tuple[Converted, list[Step]]:
    steps: list[Step] = []
    wanted = Conversion(
        target=str(target),
        quantization=quantization,
        dtype=asked.get("dtype"),
    )
    return conversion.convert(source, wanted, steps.append), steps


def weights(folder: Path) -> dict[str, mx.array]:
    found: dict[str, mx.array] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        found.update(mx.load(str(path)))
    return found


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe", "qwen3_next", "gpt_oss"])
def test_the_arrays_are_those_that_the_library_makes(architecture: str, tmp_path: Path) -> None:
    source = tiny_model(architecture, tmp_path / "source")
    done, steps = converted(source, tmp_path / "made")
    model, config = load_model(source, lazy=True)
    model, config = quantize_model(model, config, 32, 4)
    expected = dict(tree_flatten(model.parameters()))
    made = weights(tmp_path / "made")
    assert made.keys() == expected.keys()
    assert all(mx.array_equal(made[name], expected[name]).item() for name in expected)
    assert json.loads((tmp_path / "made/config.json").read_bytes())["quantization"] == config["quantization"]
    assert done.size == steps[-1].done == steps[-1].total == sum(array.nbytes for array in made.values())
    load_model(tmp_path / "made")


def test_small_shards_are_listed_and_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        conversion, "make_shards", lambda weights, _: [{name: weights[name]} for name in weights]
    )
    converted(tiny_model("llama", tmp_path / "source"), tmp_path / "made")
    files = sorted(path.name for path in (tmp_path / "made").glob("model-*.safetensors"))
    assert len(files) > 2
    index = json.loads((tmp_path / "made/model.safetensors.index.json").read_bytes())
    assert sorted(set(index["weight_map"].values())) == files
    assert index["weight_map"].keys() == weights(tmp_path / "made").keys()
    load_model(tmp_path / "made")


def test_a_dtype_alone_unpacks_a_packed_model(tmp_path: Path) -> None:
    converted(tiny_model("llama", tmp_path / "source"), tmp_path / "packed")
    converted(tmp_path / "packed", tmp_path / "dense", None, dtype="bfloat16")
    made, original = weights(tmp_path / "dense"), weights(tmp_path / "source")
    assert {array.dtype for array in made.values()} == {mx.bfloat16}
    assert {name: array.shape for name, array in made.items()} == {
        name: array.shape for name, array in original.items()
    }
    assert "quantization" not in json.loads((tmp_path / "dense/config.json").read_bytes())
    assert mx.abs(made["model.norm.weight"] - original["model.norm.weight"]).max().item() < 0.01


def test_a_recipe_gives_some_layers_more_bits(tmp_path: Path) -> None:
    source = tiny_model("llama", tmp_path / "source", hidden_size=128, intermediate_size=128, head_dim=32)
    done, _ = converted(source, tmp_path / "made", Quantization(bits=3, group_size=64, recipe="3-6"))
    listed = json.loads((tmp_path / "made/config.json").read_bytes())["quantization"]
    assert {each["bits"] for each in listed.values() if isinstance(each, dict)} == {3, 6}
    assert 3.5 < done.bits_per_weight < 6.5
    load_model(tmp_path / "made")


def test_a_vision_model_keeps_its_encoder_and_processor(tmp_path: Path) -> None:
    source = tiny_vision_model("qwen2_vl", tmp_path / "source")
    converted(source, tmp_path / "made")
    packed = {name for name in weights(tmp_path / "made") if name.endswith(".scales")}
    assert packed
    assert all(name.startswith("language_model.") for name in packed)
    assert checkpoint.is_vision(tmp_path / "made")
    checkpoint.load_model(tmp_path / "made", strict=True)
    assert {path.name for path in source.glob("*processor*")} <= {
        path.name for path in (tmp_path / "made").iterdir()
    }


@pytest.mark.parametrize("architecture", ["llama", "qwen3_next", "gpt_oss", "mamba2"])
def test_perplexity_layer_by_layer_is_that_of_the_whole_model(architecture: str, tmp_path: Path) -> None:
    folder = tiny_model(architecture, tmp_path / "source")
    tokens = Tokenizer.load(folder).encode(sample())
    model, _ = load_model(folder)
    surprise = 0.0
    for row in (tokens[:257], tokens[257:514]):
        logits = model(mx.array([row[:-1]]))[0]
        surprise -= sum(
            (logits[at, token] - mx.logsumexp(logits[at])).item() for at, token in enumerate(row[1:])
        )
    rows = sample_rows(Tokenizer.load(folder))
    found = perplexity_of(predict(folder, rows, decide(find_facts(), ModelOptions())), rows)
    assert found == pytest.approx(math.exp(surprise / 512), rel=1e-3)


def test_nothing_is_left_of_a_conversion_that_fails(tmp_path: Path) -> None:
    source = tiny_model("llama", tmp_path / "source")

    asked = Conversion(target=str(tmp_path / "made"), quantization=FOUR, dtype=None)

    def full(step: Step) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        conversion.convert(source, asked, full)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_the_same_bits_again_are_refused(tmp_path: Path) -> None:
    converted(tiny_model("llama", tmp_path / "source"), tmp_path / "made")
    with pytest.raises(ServerError, match="has 4 bits in groups of 32 already"):
        converted(tmp_path / "made", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_an_architecture_without_the_layers_of_a_recipe_is_refused(tmp_path: Path) -> None:
    source = tiny_model("mamba2", tmp_path / "source")
    with pytest.raises(ServerError, match="mlx-lm cannot convert this model"):
        converted(source, tmp_path / "made", Quantization(bits=3, group_size=32, recipe="3-6"))

"""Prediction heads that a conversion keeps."""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.errands import Conversion, Quantization
from pippin.engines.language.conversion.convert import convert
from pippin.engines.language.conversion.draft_heads import LAYER
from pippin.engines.language.drafters.layers import FAMILIES
from pippin.engines.language.drafters.loading import SPLIT_OFF
from tests.engines.language.bench import Bench
from tests.engines.language.conversion.published_heads import PUBLISHED, published
from tests.engines.language.drafters.test_split_heads import PROMPTS
from tests.engines.language.drafting import drafts_of
from tests.engines.language.step.test_heads import heads_of
from tests.engines.language.tiny_heads import qwen_with_head

pytestmark = pytest.mark.usefixtures("always", "few_layers")

EIGHT = Quantization(bits=8, group_size=32)
Proposals = dict[tuple[int, ...], list[int]]
"""By the tokens of the sequence that they are for."""


def proposals(folder: Path) -> Proposals:
    bench = Bench(folder, ModelOptions(cache_block_tokens=8, num_draft_tokens=3, mtp=True))
    drafts = drafts_of(bench, heads_of(bench), PROMPTS, 24)
    return {tuple(sequence.tokens): found for sequence, found in drafts}


def converted(source: Path, target: Path, quantization: Quantization | None) -> Path:
    asked = Conversion(target=str(target), quantization=quantization, dtype=None)
    done = convert(source, asked, lambda _: None)
    assert done.has_draft_head
    return target


def pairs(first: Proposals, second: Proposals) -> list[tuple[int, int]]:
    """Tokens proposed for the same sequences by both. How long sequences are when they are asked about depends on what
    was accepted before."""
    both = [
        pair
        for tokens in first
        if tokens in second
        for pair in zip(first[tokens], second[tokens], strict=True)
    ]
    assert len(both) >= 36
    return both


QUICK = ("qwen3_5", "glm4_moe_lite")
"""One that mlx-vlm reads and one that mlx-lm does, of which all tests are run with the others of the suite."""
EACH = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.long)
    for name in sorted([*PUBLISHED, *FAMILIES])
]


@pytest.mark.parametrize("name", EACH)
def test_a_converted_head_proposes_what_the_published_one_does(name: str, tmp_path: Path) -> None:
    """In eight bits nearly, beside a model that is not quantised and so leaves the same states."""
    source = published(name, tmp_path / name.split(",")[0])
    before = proposals(source)
    whole = converted(source, tmp_path / "whole", None)
    assert all(first == second for first, second in pairs(before, proposals(whole)))
    packed = converted(source, tmp_path / "packed", EIGHT)
    assert proposals(packed)
    _take_head(packed, whole)
    found = pairs(before, proposals(whole))
    assert sum(first == second for first, second in found) > 0.8 * len(found)


def _take_head(source: Path, target: Path) -> None:
    if (source / LAYER).exists():
        shutil.copy(source / LAYER, target)
    else:
        shutil.copytree(source / SPLIT_OFF, target / SPLIT_OFF, dirs_exist_ok=True)


def test_a_head_beside_a_model_changes_nothing_in_it(tmp_path: Path) -> None:
    source = published("qwen3_5", tmp_path / "source")
    made = converted(source, tmp_path / "made", EIGHT)
    (source / "head.safetensors").unlink()
    without = Conversion(target=str(tmp_path / "without"), quantization=EIGHT, dtype=None)
    assert not convert(source, without, lambda _: None).has_draft_head
    first, second = (
        dict(mx.load(str(folder / "model.safetensors"))) for folder in (made, tmp_path / "without")
    )
    assert first.keys() == second.keys()
    assert all(mx.array_equal(first[name], second[name]).item() for name in first)


@pytest.mark.long
def test_a_head_of_a_conversion_is_converted_again(tmp_path: Path) -> None:
    """With the publisher's numbers, and with mlx-vlm's, to which nothing is added."""
    for source in (published("qwen3_5", tmp_path / "published"), qwen_with_head(tmp_path / "mlx")):
        once = converted(source, tmp_path / f"{source.name} once", None)
        twice = converted(once, tmp_path / f"{source.name} twice", None)
        before = proposals(source)
        assert all(first == second for first, second in pairs(before, proposals(twice)))


@pytest.mark.long
def test_a_head_that_its_publisher_quantised_proposes_the_same(tmp_path: Path) -> None:
    source = published("qwen3_5", tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    (source / "config.json").write_text(json.dumps(config))
    path = source / "head.safetensors"
    stored: dict[str, mx.array] = {}
    for name, array in dict(mx.load(str(path))).items():
        stored[name] = array
        if name.endswith("_proj.weight"):
            scale = mx.abs(array).max() / 448
            blocks = [-(-size // 128) for size in array.shape]
            stored |= {name: mx.to_fp8(array / scale), f"{name}_scale_inv": mx.full(blocks, scale)}
    mx.eval(stored)
    mx.save_safetensors(str(path), stored, {"format": "pt"})
    before = proposals(source)
    whole, packed = (
        converted(source, tmp_path / name, quantization)
        for name, quantization in (("whole", None), ("packed", EIGHT))
    )
    assert all(first == second for first, second in pairs(before, proposals(whole)))
    assert proposals(packed)

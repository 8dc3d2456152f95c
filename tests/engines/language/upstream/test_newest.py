"""A folder as transformers 5 writes it loads like the same one in the form that mlx-vlm's families know."""

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from pippin.engines.language.configuration import Config, turns_of
from pippin.engines.language.upstream.mends import mend
from pippin.engines.language.upstream.newest import for_mlx_vlm, in_columns, in_its_family
from pippin.engines.language.upstream.reading import load_model
from tests.engines.language.vision.any_family import write
from tests.engines.language.vision.family_settings import FAMILIES
from tests.engines.language.vision.tiny_vision_models import tiny_vision_model

ROTARY = {"rope_theta": 10000.0, "rope_type": "default"}


def rewrite(
    folder: Path, change: Callable[[Config], Config], name: Callable[[str], str | None] = lambda name: name
) -> None:
    """Change the folder's configuration, and the names of its weights; one without a name is left out."""
    path, weights = folder / "config.json", folder / "model.safetensors"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    arrays = mx.load(str(weights))
    found = {new: array for old, array in arrays.items() if (new := name(old)) is not None}
    mx.save_safetensors(str(weights), found)


def logits(folder: Path) -> mx.array:
    return load_model(folder).language_model(mx.array([[1, 5, 9, 14]])).logits


def same(config: Config) -> Config:
    return config


def nested(config: Config) -> Config:
    """The fields of the text model in their own part, and the encoder's type with its suffix."""
    vision = config.pop("vision_config")
    kind, scaling = config["model_type"], config.pop("rope_scaling")
    theta = config.pop("rope_theta")
    text = {name: config.pop(name) for name in [*config] if not name.endswith(("_id", "model_type"))}
    table = {"rope_theta": theta, "rope_type": "default", "mrope_section": scaling["mrope_section"]}
    return {
        **config,
        "text_config": {**text, "model_type": f"{kind}_text", "rope_parameters": table},
        "vision_config": {**vision, "model_type": f"{kind}_vision"},
    }


def layers_listed(config: Config) -> Config:
    text = config["text_config"]
    interval = text.pop("full_attention_interval")
    count = text["num_hidden_layers"]
    text["layer_types"] = [
        "linear_attention" if (place + 1) % interval else "full_attention" for place in range(count)
    ]
    return {**config, "vision_config": {**config["vision_config"], "model_type": "qwen3_5_vision"}}


def without_tower_level(name: str) -> str:
    return name.replace("vision_tower.vision_model.", "vision_tower.")


@pytest.mark.parametrize(
    ("family", "change", "name"),
    [
        ("llava", same, without_tower_level),
        ("gemma3", same, without_tower_level),
        ("qwen2_vl", nested, str),
        ("qwen2_5_vl", nested, str),
        ("qwen3_5", layers_listed, str),
    ],
)
def test_the_newest_form_loads_as_the_older_one(family: str, change: Any, name: Any, tmp_path: Path) -> None:
    folder = tiny_vision_model(family, tmp_path / family)
    expected = logits(folder)
    before = (folder / "config.json").read_text(), {*mx.load(str(folder / "model.safetensors"))}
    rewrite(folder, change, name)
    assert before != ((folder / "config.json").read_text(), {*mx.load(str(folder / "model.safetensors"))})
    assert mx.array_equal(logits(folder), expected)


PUBLISHED_STEP = {
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "attention_other_setting": {"num_attention_heads": 8, "num_attention_groups": 2},
    "use_head_wise_attn_gate": True,
    "rope_theta": [50000.0, 2345.0, 50000.0],
    "partial_rotary_factors": [0.5, 1.0, 0.5],
    "yarn_only_types": ["full_attention"],
    "rope_scaling": {"rope_type": "linear", "factor": 3.0},
    "sliding_window": 3,
    "num_hidden_layers": 3,
    "moe_layers_enum": "1,2",
}
TABLES_OF_STEP = {
    "full_attention": {
        "rope_type": "linear",
        "factor": 3.0,
        "rope_theta": 50000.0,
        "partial_rotary_factor": 0.5,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 2345.0},
}


def step_by_types(config: Config) -> Config:
    """Step 3.7 with tables for types of layers, and transformers' names of sizes."""
    text, vision = dict(config["text_config"]), dict(config["vision_config"])
    for name in PUBLISHED_STEP.keys() - {"layer_types", "sliding_window", "num_hidden_layers"}:
        del text[name]
    text |= {"model_type": "step3p5", "rope_parameters": TABLES_OF_STEP}
    text["mlp_layer_types"] = ["dense", "sparse", "sparse"]
    text |= {"num_sliding_attention_heads": 8, "num_key_value_heads": text.pop("num_attention_groups")}
    text |= {"n_routed_experts": text.pop("moe_num_experts"), "num_experts_per_tok": text.pop("moe_top_k")}
    vision |= {"hidden_size": vision.pop("width"), "num_hidden_layers": vision.pop("layers")}
    vision |= {"num_attention_heads": vision.pop("heads")}
    return {**config, "text_config": text, "vision_config": {**vision, "model_type": "step3p5_vision"}}


def test_step_with_tables_by_the_types_of_layers_loads_as_published(tmp_path: Path) -> None:
    made = FAMILIES["step3p7"]
    text = {**made.config["text_config"], **PUBLISHED_STEP}
    own = dataclasses.replace(made, config={**made.config, "text_config": text})
    folder = write("step3p7", own, tmp_path / "step3p7")
    expected = logits(folder)
    rewrite(folder, step_by_types)
    assert mx.array_equal(logits(folder), expected)


def test_an_array_that_fits_no_parameter_is_still_refused(tmp_path: Path) -> None:
    folder = tiny_vision_model("llava", tmp_path / "llava")
    rewrite(folder, same, lambda name: name.replace("vision_tower.vision_model.", "vision_tower.one.two."))
    with pytest.raises(ValueError, match="not in model"):
        load_model(folder)


def test_experts_saved_in_rows_are_turned_and_published_ones_are_not() -> None:
    config = {"model_type": "qwen3_vl_moe", "text_config": {"hidden_size": 8}}
    published = {"a.experts.gate_up_proj": mx.zeros((2, 8, 12)), "a.experts.down_proj": mx.zeros((2, 6, 8))}
    saved = {name: array.swapaxes(1, 2) for name, array in published.items()}
    shapes = {name: array.shape for name, array in published.items()}
    for arrays in (published, saved):
        assert {name: array.shape for name, array in in_columns(arrays, config).items()} == shapes


def test_a_llava_with_the_encoder_of_pixtral_is_a_pixtral() -> None:
    assert in_its_family({"model_type": "llava", "vision_config": {"model_type": "pixtral"}})[
        "model_type"
    ] == ("pixtral")
    assert in_its_family({"model_type": "llava"})["model_type"] == "llava"
    # What is left out is what transformers takes for the family that it has.
    parts = {"vision_config": {"model_type": "pixtral"}, "text_config": {"model_type": "mistral"}}
    assert for_mlx_vlm({"model_type": "llava", **parts})["vision_feature_layer"] == -2


def test_the_encoder_of_qwen3_vl_moe_has_the_forms_of_gelu_of_qwen3_vl(tmp_path: Path) -> None:
    folder = write("qwen3_vl_moe", FAMILIES["qwen3_vl_moe"], tmp_path / "qwen3_vl_moe")
    model = load_model(folder)
    mend(model)
    tower, numbers = model.vision_tower, mx.linspace(-3, 3, 50)
    assert mx.allclose(tower.blocks[0].mlp.act_fn(numbers), nn.gelu_approx(numbers), atol=1e-6)
    for merger in (tower.merger, *tower.deepstack_merger_list):
        assert mx.allclose(merger.act_fn(numbers), nn.gelu(numbers), atol=1e-6)


@pytest.mark.parametrize("beside", [None, 2048])
def test_features_are_scaled_by_the_size_of_the_text_model(beside: int | None, tmp_path: Path) -> None:
    gemma = tiny_vision_model("gemma3", tmp_path / "gemma3")
    for folder in (gemma, write("paligemma", FAMILIES["paligemma"], tmp_path / "paligemma")):
        rewrite(folder, lambda config: {**config, **({"hidden_size": beside} if beside else {})})
        model = load_model(folder, lazy=True)
        assert model.config.hidden_size == model.config.text_config.hidden_size != beside


def test_a_stored_head_counts_by_whichever_name(tmp_path: Path) -> None:
    folder = tiny_vision_model("gemma3", tmp_path / "gemma3")
    expected = logits(folder) * 2
    path = str(folder / "model.safetensors")
    arrays = mx.load(path)
    head = "language_model.lm_head.weight"
    mx.save_safetensors(path, {**arrays, head: arrays[head] * 2})
    assert mx.allclose(logits(folder), expected, atol=1e-5)


def test_the_base_of_positions_beside_the_tables_is_read(tmp_path: Path) -> None:
    folder = tiny_vision_model("gemma3", tmp_path / "gemma3")
    found = []
    for theta in (10000.0, 1000000.0):
        rewrite(folder, lambda config, theta=theta: with_text(config, rope_theta=theta))
        found.append(logits(folder))
    table = {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    rewrite(folder, lambda config: with_text(config, rope_theta=None, rope_parameters=table))
    assert not mx.allclose(found[0], found[1], atol=1e-3)
    assert mx.array_equal(logits(folder), found[0])


def with_text(config: Config, **fields: Any) -> Config:
    """The configuration with these fields of its text model; None takes one away."""
    text = {name: value for name, value in {**config["text_config"], **fields}.items() if value is not None}
    return {**config, "text_config": text}


@pytest.mark.parametrize(
    "family", ["gemma4", "gemma4_unified", "internvl", "qwen2_5_vl", "llava_next", "kimi_k25"]
)
def test_what_a_file_leaves_out_means_what_transformers_takes(family: str) -> None:
    kind: Any = CONFIG_MAPPING[family]
    made, sizes = kind(), ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
    parts = {
        name: {
            "model_type": part.model_type,
            **{each: getattr(part, each) for each in sizes if hasattr(part, each)},
        }
        for name in ("text_config", "vision_config")
        if (part := getattr(made, name, None)) is not None
    }
    config: Config = {"model_type": family, **parts}
    read, expected = for_mlx_vlm(config), kind(**copy.deepcopy(config))
    for name in parts:
        usual = turns_of(config).parts[name].taken
        assert usual
        assert {each: read[name][each] for each in usual if each in read[name]} == {
            each: usual[each] for each in usual if each in read[name]
        }
        own = getattr(expected, name)
        for each in ("attention_bias", "attention_k_eq_v", "use_double_wide_mlp", "final_logit_softcapping"):
            if each in read[name]:
                assert read[name][each] == getattr(own, each)

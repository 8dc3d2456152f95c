"""mlx-vlm's models turn queries and keys as a configuration says, in either spelling."""

import json
import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_vlm.models.mistral3.config import TextConfig
from mlx_vlm.models.mistral3.language import LanguageModel

from pippin.engines.language.upstream.mends import mend
from pippin.engines.language.upstream.newest import in_its_family
from pippin.engines.language.upstream.reading import OTHERWISE, load_model
from pippin.engines.language.upstream.rotary import fingerprint, rotary_modules
from tests.engines.language.architectures.any_architecture import configuration
from tests.engines.language.vision.any_family import merged, write
from tests.engines.language.vision.family_settings import FAMILIES
from tests.engines.language.vision.tiny_vision_models import tiny_vision_model

Json = dict[str, Any]

ALL_DIMENSIONS: Json = {
    "type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
WHOLE_AND_PART: list[Json] = [{}, {"partial_rotary_factor": 1.0}, {"partial_rotary_factor": 0.5}]
LINEAR: Json = {"rope_type": "linear", "factor": 4.0}
KNOWN = ("aya_vision", "idefics2", "internvl_chat", "llava_next", "llava_onevision", "paligemma")


def changed(folder: Path, **settings: Any) -> Path:
    """The folder with these rotary settings, and no others, of its text model."""
    path = folder / "config.json"
    config: Json = json.loads(path.read_text())
    text = config.get("text_config") or config
    for name in ("rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq"):
        text.pop(name, None)
    text |= settings
    path.write_text(json.dumps(config))
    return folder


def turns(folder: Path, **settings: Any) -> list[Any]:
    return fingerprint(load_model(changed(folder, **settings), lazy=True))


@pytest.mark.parametrize("family", KNOWN)
def test_both_spellings_turn_alike(family: str, tmp_path: Path) -> None:
    folder = write(family, FAMILIES[family], tmp_path / family)
    plain = turns(folder, rope_theta=10000.0)
    older = turns(folder, rope_theta=5e4, rope_scaling={"type": "linear", **LINEAR})
    assert turns(folder, rope_parameters={"rope_theta": 5e4, **LINEAR}) == older
    unscaled = turns(folder, rope_parameters={"rope_theta": 5e4, "rope_type": "default"})
    assert len({str(found) for found in (plain, older, unscaled)}) == 3


@pytest.mark.parametrize("family", ["glm_ocr", "indic_ocr", "minicpmv4_6", "qwen4_exp"])
def test_a_class_that_reads_the_newest_table_alone_gets_it_from_older_fields(
    family: str, tmp_path: Path
) -> None:
    folder = write(family, FAMILIES[family], tmp_path / family)
    sections = {"mrope_section": [2, 3, 3]}
    other = logits(changed(folder, rope_theta=1e4, rope_scaling=sections, partial_rotary_factor=1.0))
    older = logits(changed(folder, rope_theta=1.5, rope_scaling=sections, partial_rotary_factor=1.0))
    table = {"rope_theta": 1.5, "partial_rotary_factor": 1.0, "rope_type": "default", **sections}
    newest = logits(changed(folder, partial_rotary_factor=None, rope_parameters=table))
    assert mx.array_equal(older, newest)
    assert not mx.allclose(older, other, atol=1e-3)


def test_heads_turn_whole_where_a_table_does_not_name_a_part(tmp_path: Path) -> None:
    """As in transformers; the class takes a quarter."""
    folder = write("qwen4_exp", FAMILIES["qwen4_exp"], tmp_path / "m")
    table = {"rope_theta": 1.5, "rope_type": "default", "mrope_section": [2, 3, 3]}
    kind = "qwen4_exp_text"
    found = [
        logits(changed(folder, model_type=kind, rope_parameters={**table, **part})) for part in WHOLE_AND_PART
    ]
    assert mx.array_equal(found[0], found[1])
    assert not mx.allclose(found[0], found[2], atol=1e-3)


def test_a_class_that_takes_no_other_fields_gets_none(tmp_path: Path) -> None:
    folder = write("glm_ocr", FAMILIES["glm_ocr"], tmp_path / "glm_ocr")
    tokens = mx.array([[1, 5, 9, 14]])
    found = []
    for theta in (1e4, 1.5):
        table = {
            "rope_type": "default",
            "rope_theta": theta,
            "mrope_section": [2, 3, 3],
            "partial_rotary_factor": 1.0,
        }
        model = load_model(changed(folder, rope_parameters=table))
        found.append(model.language_model(tokens).logits)
    assert not mx.allclose(*found, atol=1e-3)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_5", "qwen3_vl"])
def test_positions_in_three_axes_are_scaled_with_their_factor(family: str, tmp_path: Path) -> None:
    folder = tiny_vision_model(family, tmp_path / family)
    axes: Json = {"rope_theta": 1e4, "mrope_section": [2, 3, 3], "partial_rotary_factor": 1.0}
    yarn: Json = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 24,
        "type": "default",
    }
    found = []
    for table in ({"rope_type": "default"}, {**yarn, "attention_factor": 1.25}):
        model = load_model(changed(folder, rope_parameters={**axes, **table}), lazy=True)
        found.append(next(each for _, _, each in rotary_modules(model.language_model)))
    plain, scaled = (mx.array(each._inv_freq) for each in found)
    assert (scaled / plain).tolist() == pytest.approx([1, 0.625, *[0.25] * 6])
    assert [each.attention_scaling for each in found] == [1.0, 1.25]
    assert not found[1].fused_apply


def test_positions_in_three_axes_have_the_factor_of_longrope(tmp_path: Path) -> None:
    folder = tiny_vision_model("qwen3_5", tmp_path / "qwen3_5")
    table = {"rope_theta": 1e4, "mrope_section": [2, 3, 3], "partial_rotary_factor": 1.0, "factor": 4.0}
    table |= {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    table |= {"original_max_position_embeddings": 16}
    model = load_model(changed(folder, rope_parameters=table), lazy=True)
    module = next(each for _, _, each in rotary_modules(model.language_model))
    assert module.attention_scaling == pytest.approx((1 + math.log(4) / math.log(16)) ** 0.5)


@pytest.mark.parametrize("family", ["jina_vlm", "muse_spark"])
def test_a_scaling_that_a_class_leaves_out_is_refused(family: str, tmp_path: Path) -> None:
    folder = write(family, FAMILIES[family], tmp_path / family)
    with pytest.raises(ValueError, match="rope_scaling of the type 'linear' is not read"):
        turns(folder, rope_theta=1e4, rope_scaling=LINEAR)


def logits(folder: Path) -> mx.array:
    return load_model(folder).language_model(mx.array([[1, 5, 9, 14]])).logits


def test_a_stray_file_and_an_index_are_judged_as_for_mlx_lm(tmp_path: Path) -> None:
    folder = write("paligemma", FAMILIES["paligemma"], tmp_path / "m")
    expected, weights = logits(folder), mx.load(str(folder / "model.safetensors"))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(weights, "model.safetensors")}))
    mx.save_safetensors(
        str(folder / "model-zzz.safetensors"), {name: each * 2 for name, each in weights.items()}
    )
    assert mx.array_equal(logits(folder), expected)
    index.unlink()
    with pytest.raises(ValueError, match="both hold"):
        load_model(folder)


def test_fp8_numbers_are_read_as_numbers(tmp_path: Path) -> None:
    folder = write("paligemma", FAMILIES["paligemma"], tmp_path / "m")
    path = folder / "model.safetensors"
    weights = mx.load(str(path))
    packed = {
        name: mx.to_fp8(each) if name.endswith("_proj.weight") else each for name, each in weights.items()
    }
    mx.save_safetensors(
        str(path),
        {
            name: mx.from_fp8(each, dtype=mx.float32) * 0.5 if each.dtype == mx.uint8 else each
            for name, each in packed.items()
        },
    )
    expected = logits(folder)
    scales = {f"{name}_scale": mx.array([0.5]) for name, each in packed.items() if each.dtype == mx.uint8}
    assert scales
    mx.save_safetensors(str(path), {**packed, **scales})
    # MLX writes bytes; the header of other tools says what they are.
    data = path.read_bytes().replace(b'"dtype":"U8"', b'"dtype":"F8_E4M3"')
    size = int.from_bytes(data[:8], "little") + len(data) - path.stat().st_size
    path.write_bytes(size.to_bytes(8, "little") + data[8:])
    config = json.loads((folder / "config.json").read_text())
    settings = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    assert mx.allclose(logits(folder), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "fields", "told"),
    [
        ("llava_next", {"projector_hidden_act": "relu"}, "activation 'relu' of multi_modal_projector"),
        ("llava_next", {"text_config": {"hidden_act": "gelu"}}, "hidden_act 'gelu'"),
        ("aya_vision", {"text_config": {"model_type": "cohere2", "hidden_act": "gelu"}}, "hidden_act 'gelu'"),
        # Its class keeps the field, and nothing asks for it.
        (
            "qwen3_vl_moe",
            {"text_config": {"model_type": "qwen3_vl_moe_text", "hidden_act": "gelu"}},
            "hidden_act 'gelu'",
        ),
        ("internvl", {"vision_feature_layer": -2}, "vision_feature_layer -2"),
        ("lfm2_vl", {"projector_hidden_act": "relu"}, "projector_hidden_act 'relu'"),
        (
            "llama4",
            {"text_config": {"model_type": "llama4_text", "no_rope_layers": [0, 1]}},
            "no_rope_layers",
        ),
        (
            "idefics2",
            {"perceiver_config": {"model_type": "idefics2_perceiver", "hidden_act": "relu"}},
            "hidden_act 'relu'",
        ),
        *(
            (family, {"vision_config": {"hidden_act": "relu"}}, "hidden_act 'relu' of vision_config")
            for family in ("minimax_m3_vl", "muse_glimmer", "step3p7")
        ),
        ("mimo_v2", {"vision_config": {"kv_channels": 32}}, "kv_channels 32 of vision_config"),
        ("molmo2", {"vision_config": {"vit_config": {"hidden_act": "silu"}}}, "hidden_act 'silu' of vision"),
        ("molmo2", {"text_config": {"model_type": "molmo2_text", "norm_after": True}}, "norm_after True"),
        (
            "muse_spark",
            {"text_config": {"model_type": "muse_spark_text", "residual_gate_temperature": 0.5}},
            "residual_gate_temperature 0.5",
        ),
        # What transformers does not know is as in the family's class.
        (
            "kimi_k3",
            {"vision_config": {"pos_emb_interpolation_mode": "bicubic"}},
            "interpolation_mode 'bicubic'",
        ),
        ("step3p7", {"vision_config": {"rope_theta_rescale_factor": 2.0}}, "rope_theta_rescale_factor 2.0"),
        ("minicpmo", {"audio_config": {"activation_function": "relu"}}, "activation_function 'relu'"),
        (
            "granite4_vision",
            {"deepstack_layer_map": [[0, 1]], "spatial_target_layers": [0, 1]},
            "deepstack_layer_map or spatial_target_layers that names one layer twice",
        ),
        (
            "paligemma",
            {"text_config": {"use_bidirectional_attention": False}},
            "use_bidirectional_attention false of text_config",
        ),
        (
            "gemma3",
            {"text_config": {"sliding_window": 15}},
            "sliding_window of text_config that is less than the tokens",
        ),
    ],
)
def test_a_field_that_a_class_of_mlx_vlm_leaves_out_is_refused(
    family: str, fields: Json, told: str, tmp_path: Path
) -> None:
    made = tmp_path / family
    folder = write(family, FAMILIES[family], made) if family in FAMILIES else tiny_vision_model(family, made)
    path = folder / "config.json"
    config: Json = json.loads(path.read_text())
    path.write_text(json.dumps(merged(config, fields)))
    with pytest.raises(ValueError, match=told):
        load_model(folder, lazy=True)


@pytest.mark.parametrize(
    ("family", "config", "told"),
    [
        ("mimo_v2", {"vision_config": {"num_query_groups": 2}}, "num_query_groups 2"),
        ("mimo_v2", {"vision_config": {"num_heads": 4, "num_key_value_heads": 2, "num_query_groups": 2}}, ""),
        ("mimo_v2", {"vision_config": {"kv_channels": 16, "qk_channels": 16, "window_size": 128}}, ""),
        ("mimo_v2", {"vision_config": {"window_size": 64}}, "window_size 64"),
        ("molmo2", {"adapter_config": {"hidden_act": "gelu"}}, 'hidden_act "gelu"'),
        ("molmo2", {"vision_config": {"adapter_config": {"hidden_act": "gelu"}}}, 'hidden_act "gelu"'),
        (
            "molmo2",
            {"text_config": {"num_hidden_layers": 2, "rope_scaling_layers": [1]}},
            "rope_scaling_layers",
        ),
        ("molmo2", {"text_config": {"num_hidden_layers": 2, "rope_scaling_layers": [0, 1]}}, ""),
        ("qwen4_exp", {"text_config": {"hidden_act": "gelu"}}, 'hidden_act "gelu"'),
        ("step3p7", {"text_config": {"head_dim": 16, "query_pre_attn_scalar": 16}}, ""),
        (
            "step3p7",
            {"text_config": {"head_dim": 16, "query_pre_attn_scalar": 15}},
            "query_pre_attn_scalar 15",
        ),
    ],
)
def test_what_a_family_takes_for_granted_is_named(family: str, config: Json, told: str) -> None:
    found = OTHERWISE[family](config)
    assert found.startswith(told)
    assert bool(found) == bool(told)


def loaded(folder: Path, *, vision: Json, **fields: Any) -> Any:
    """The model with these fields of its encoder's configuration, and of the whole."""
    path = folder / "config.json"
    config: Json = json.loads(path.read_text())
    path.write_text(json.dumps({**config, **fields, "vision_config": {**config["vision_config"], **vision}}))
    return load_model(folder, lazy=True)


@pytest.mark.parametrize("said", [{"rope_theta": 100.0}, {"rope_parameters": {"rope_theta": 100.0}}])
def test_an_encoder_turns_by_the_base_of_its_configuration(said: Json, tmp_path: Path) -> None:
    model = loaded(tiny_vision_model("qwen2_5_vl", tmp_path / "m"), vision=said)
    assert {module.theta for module in model.modules() if hasattr(module, "theta")} == {100.0}


def test_norms_of_an_encoder_have_its_epsilon_and_a_projector_its_biases(
    tmp_path: Path,
) -> None:
    model = loaded(
        tiny_vision_model("llava", tmp_path / "m"),
        vision={"model_type": "clip_vision_model", "layer_norm_eps": 0.25},
        multimodal_projector_bias=False,
    )
    norms = [module for module in model.vision_tower.modules() if isinstance(module, nn.LayerNorm)]
    assert {norm.eps for norm in norms} == {0.25}
    assert "bias" not in model.multi_modal_projector.linear_1


@pytest.mark.parametrize(
    ("family", "field", "norms", "epsilon"),
    [
        ("mllama", "norm_eps", "vision_tower.layernorm_", 1e-5),
        ("mllama", "norm_eps", "vision_tower.transformer.layers.", 0.25),
        ("minicpmv4_6", "layer_norm_eps", "vit_merger.", 0.25),
        ("minicpmv4_6", "layer_norm_eps", "merger.", 1e-6),
        ("minicpmv4_7", "layer_norm_eps", "vit_merger.", 0.25),
        *[(f"muse_{each}", "layer_norm_eps", "vision_tower.layers.", 1e-5) for each in ("glimmer", "spark")],
        *[(f"muse_{each}", "layer_norm_eps", "vision_tower.ln_", 0.25) for each in ("glimmer", "spark")],
    ],
)
def test_norms_have_the_epsilon_that_transformers_gives_them(
    family: str, field: str, norms: str, epsilon: float, tmp_path: Path
) -> None:
    model = loaded(write(family, FAMILIES[family], tmp_path / family), vision={field: 0.25})
    modules = model.named_modules()
    assert {each.eps for name, each in modules if name.startswith(norms) and hasattr(each, "eps")} == {
        epsilon
    }


def test_a_projector_has_the_activation_that_its_configuration_names(tmp_path: Path) -> None:
    folder = write("internvl", FAMILIES["internvl"], tmp_path / "internvl")
    path = folder / "config.json"
    config: Json = json.loads(path.read_text())
    for name, form in (("gelu", "none"), ("gelu_pytorch_tanh", "precise")):
        path.write_text(json.dumps({**config, "projector_hidden_act": name}))
        assert load_model(folder, lazy=True).multi_modal_projector.activation._approx == form


def test_granite_vision_is_told_by_its_text_model() -> None:
    config: Json = {"model_type": "llava_next", "text_config": {"model_type": "granite"}}
    assert in_its_family(config)["model_type"] == "granite_vision"
    assert in_its_family({**config, "text_config": {"model_type": "llama"}})["model_type"] == "llava_next"
    assert in_its_family({**config, "text_config": None})["model_type"] == "llava_next"


@pytest.mark.parametrize("family", ["qwen2_5_vl", "pixtral", "mistral3"])
def test_an_encoder_s_activation_that_its_class_does_not_read_is_refused(family: str, tmp_path: Path) -> None:
    folder = tiny_vision_model(family, tmp_path / "m")
    path = folder / "config.json"
    config: Json = json.loads(path.read_text())

    def load(name: str | None) -> None:
        part = {**config["vision_config"], **({"hidden_act": name} if name else {})}
        path.write_text(json.dumps({**config, "vision_config": part}))
        load_model(folder, lazy=True)

    load("silu")
    load(None)
    with pytest.raises(ValueError, match="hidden_act 'gelu' of vision_config"):
        load("gelu")


def test_a_text_model_of_another_architecture_is_mended_within_a_family() -> None:
    text = TextConfig.from_dict({**configuration("mistral4"), "rope_parameters": ALL_DIMENSIONS})
    whole = nn.Module()
    whole.language_model = LanguageModel(text)
    mend(whole)
    attention = whole.language_model.layers[0].self_attn
    # transformers' `Mistral4Attention` has the same factor.
    assert attention.scale == attention.qk_head_dim**-0.5 * (0.1 * math.log(16.0) + 1.0) ** 2
    assert (attention.q_a_layernorm.eps, attention.kv_a_layernorm.eps) == (1e-6, 1e-6)

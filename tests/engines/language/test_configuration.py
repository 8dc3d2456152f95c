"""A configuration means the same in either spelling, for every architecture that mlx-lm and transformers both know."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from mlx.utils import tree_flatten
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.engines.language.configuration import OF_WHOLE, spelled_out, turns_of
from pippin.engines.language.upstream.fields import filled, refuse_unread
from pippin.engines.language.upstream.mends import classes_of
from pippin.engines.language.upstream.newest import for_mlx_vlm
from pippin.engines.language.upstream.rotary import fingerprint
from tests.engines.language.architectures.any_architecture import architectures, configuration, write
from tests.engines.language.bench import Bench

Json = dict[str, Any]

THETA = 123456.0
SCALINGS: dict[str, Json] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "dynamic": {"factor": 4.0},
    "longrope": {
        "short_factor": [1.0] * 8,
        "long_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 3.0, 5.0, 8.0],
        "original_max_position_embeddings": 1024,
    },
}
UNREAD = {"bitnet", "muse_spark", "olmo", "phi3small"}
"""Architectures that are not tried on a CPU."""

ONE_SPELLING = {
    "gemma4",
    "gemma4_text",
    "glm_moe_dsa",
    "kimi_linear",
    "laguna",
    "mellum",
    "mimo_v2_flash",
    "ministral3",
    "mistral4",
    "muse_glimmer",
    "olmo3",
    "qwen3_5",
    "qwen3_5_moe",
    "step3p5",
}
"""Those of which transformers reads the two in different ways."""

UNTURNED = {"gpt2", "gpt_bigcode", "gptj", "jamba", "mamba", "mamba2", "nemotron_h"}
"""Those that transformers turns by no field."""

OTHER_NAMES = {"gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}}
LAYERED = {
    "gemma3": "rope_local_base_freq",
    "gemma3_text": "rope_local_base_freq",
    "gemma3n": "rope_local_base_freq",
}
ROTARY = {"rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq"}
LAYERS = ("full_attention", "sliding_attention")
LING = {"model_type": "bailing_hybrid", "layer_group_size": 2}
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
SHARING = sorted(
    kind
    for kind in {*architectures()} - UNREAD - {"Klear", "dots1", "nemotron_h"}
    if {*SHARED} & {**configuration(kind)}.keys()
)
BOTH = sorted({*architectures()} & {*CONFIG_MAPPING} - UNREAD - ONE_SPELLING)


def plain(architecture: str) -> tuple[Json, Json]:
    """A tiny configuration without rotary settings, and the part of it that these belong to."""
    config: Json = json.loads(json.dumps(configuration(architecture)))
    text = config["text_config"] if config.get("text_config") else config
    for name in ROTARY:
        text.pop(name, None)
    return config, text


def older(architecture: str, scaling: Json) -> Json:
    config, text = plain(architecture)
    text[OTHER_NAMES.get(architecture, {}).get("rope_theta", "rope_theta")] = THETA
    text["rope_scaling"] = {**scaling, "type": scaling["rope_type"]}
    if architecture in LAYERED:
        text[LAYERED[architecture]] = 777.0
    return config


def newer(architecture: str, scaling: Json) -> Json:
    config, text = plain(architecture)
    table: Json = {"rope_theta": THETA, **scaling}
    named = OTHER_NAMES.get(architecture, {}).get("partial_rotary_factor", "partial_rotary_factor")
    if named in text:
        table["partial_rotary_factor"] = text.pop(named)
    if architecture in LAYERED:
        sliding = {"rope_type": "default", "rope_theta": 777.0}
        text["rope_parameters"] = {"sliding_attention": sliding, "full_attention": table}
    else:
        text["rope_parameters"] = table
    return config


def turns(config: Json) -> Any:
    """How a model turns queries and keys, or why there is none."""
    try:
        make, arguments = classes_of(config)
        return fingerprint(make(arguments.from_dict(config)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"


def bases(found: Any) -> set[float]:
    return {float(own["base"]) for _, own in found if own.get("base") is not None}


@pytest.mark.parametrize("architecture", BOTH)
def test_both_spellings_turn_alike_or_are_refused(architecture: str) -> None:
    unscaled = turns(older(architecture, {"rope_type": "default"}))
    for kind, scaling in SCALINGS.items():
        hold_spellings(architecture, kind, {"rope_type": kind, **scaling}, unscaled)


def hold_spellings(architecture: str, kind: str, scaling: Json, unscaled: Any) -> None:
    found = turns(newer(architecture, scaling))
    expected = unscaled if kind == "default" else turns(older(architecture, scaling))
    if architecture in UNTURNED:
        assert all(each == unscaled or "is not read by the class" in each for each in (found, expected))
        return
    if kind != "dynamic" or isinstance(
        expected, str
    ):  # some classes turn plainly within the window, some by its size
        assert str(found) == str(expected)
    # `dynamic` scales what lies behind the window.
    if isinstance(found, list) and kind not in ("default", "dynamic"):
        assert found != unscaled


@pytest.mark.parametrize(
    ("architecture", "fields", "expected"),
    [
        ("dbrx", {"rope_theta": THETA}, {THETA}),
        ("gptj", {"rope_theta": THETA}, {10000.0}),
        ("recurrent_gemma", {"rope_theta": THETA}, {THETA}),
        ("recurrent_gemma", {"rope_parameters": {"rope_theta": THETA}}, {THETA}),
        ("cohere2", {}, {10000.0}),
        ("qwen2", {}, {10000.0}),
        ("smollm3", {}, {2000000.0}),
        ("gemma4_text", {"rope_theta": THETA}, {10000.0}),
        ("qwen3_5", {"rope_theta": THETA}, {THETA}),
        ("qwen3_5", {}, {10000.0}),
        ("laguna", {"rope_theta": THETA}, {500000.0}),
        ("mellum", {"rope_theta": THETA}, {10000.0, 500000.0}),
        ("olmo3", {"rope_theta": THETA}, {THETA, 500000.0}),
    ],
)
def test_a_base_is_the_one_that_transformers_reads_or_takes_for_granted(
    architecture: str, fields: Json, expected: set[float]
) -> None:
    config, text = plain(architecture)
    text |= fields
    assert bases(turns(config)) == expected


def test_scalings_that_transformers_takes_for_granted_are_there() -> None:
    found = {}
    for architecture in ("apertus", "gpt_oss", "ministral3"):
        config, text = plain(architecture)
        text["rope_theta"] = THETA
        found[architecture] = {kind for kind, _ in turns(config)}
    assert found == {"apertus": {"Llama3RoPE"}, "gpt_oss": {"YarnRoPE"}, "ministral3": {"YarnRoPE"}}


def test_older_files_of_dbrx_have_their_base_in_a_part() -> None:
    config, _ = plain("dbrx")
    config["attn_config"]["rope_theta"] = 4567.0
    assert bases(turns(config)) == {4567.0}


def test_layers_turn_by_the_tables_of_their_types() -> None:
    yarn: Json = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    full = {**yarn, "rope_theta": THETA, "attention_factor": 1.25}
    sliding = {"rope_type": "linear", "rope_theta": 777.0, "factor": 2.0}
    for architecture in ("gemma3_text", "mellum", "llama"):
        config, text = plain(architecture)
        text |= {"num_hidden_layers": 2, "sliding_window_pattern": 2}
        text["layer_types"] = ["sliding_attention", "full_attention"]
        text["rope_parameters"] = {"sliding_attention": sliding, "full_attention": full}
        # The last layer comes first.
        two, one = turns(config)
        assert (one[0], one[1]["base"], one[1]["scale"]) == ("RoPE", 777.0, 0.5)
        assert (two[0], two[1]["mscale"]) == ("YarnRoPE", 1.25)
        # transformers reads this of YaRN beside the tables alone.
        text["rope_parameters"]["full_attention"] = {**full, "truncate": False}
        assert turns(config)[0] == two
        text["rope_parameters"]["truncate"] = False
        assert turns(config)[0] != two
        text["rope_parameters"] = {
            "sliding_attention": {**full, "factor": 3.0},
            "full_attention": yarn | full,
        }
        two, one = turns(config)
        assert one[1]["_freqs"] != two[1]["_freqs"]
    # Older files tell the types by a pattern.
    config = older("gemma3_text", {**yarn, "attention_factor": 1.25})
    found = turns(config | {"num_hidden_layers": 2, "sliding_window_pattern": 2})
    assert {own["mscale"] for kind, own in found if kind == "YarnRoPE"} == {1.25}


def test_layers_turn_the_part_of_their_heads_that_their_table_names() -> None:
    config, text = plain("laguna")
    text |= {"num_hidden_layers": 2, "layer_types": [*LAYERS]}
    full: Json = {"rope_type": "default", "rope_theta": THETA, "partial_rotary_factor": 0.5}
    text["rope_parameters"] = {
        "full_attention": full,
        "sliding_attention": {"rope_type": "default", "rope_theta": 777.0},
    }
    assert {own["base"]: own["dims"] for _, own in turns(config)} == {THETA: 8, 777.0: 16}
    config = configuration("mimo_v2_flash")
    linear = {"rope_type": "linear", "factor": 2.0, "rope_theta": 777.0}
    config["rope_parameters"] = dict.fromkeys(LAYERS, linear)
    config["layer_types"] = [LAYERS[kind] for kind in config["hybrid_layer_pattern"]]
    assert {own["dims"] for _, own in turns(config)} == {config["head_dim"]}


def test_a_part_of_the_head_that_a_class_does_not_turn_alone_is_refused() -> None:
    part: Json = {"rope_type": "default", "partial_rotary_factor": 0.25}
    scaled = {**part, "rope_type": "linear", "factor": 4.0}
    assert "partial_rotary_factor 0.25 is not read" in turns(newer("llama", scaled))
    # transformers' model of Llama leaves the field out where positions are not scaled.
    assert turns(newer("llama", part)) == turns(newer("llama", {"rope_type": "default"}))
    assert {own["dims"] for _, own in turns(newer("glm4", part))} == {8}


@pytest.mark.parametrize(
    ("architecture", "written", "read"),
    [("mellum", "num_local_experts", "num_experts"), ("internlm3", "attention_bias", "qkv_bias")],
)
def test_fields_are_read_under_the_name_that_transformers_writes(
    architecture: str, written: str, read: str
) -> None:
    config = {"model_type": architecture, written: 7}
    assert spelled_out(config)[read] == 7
    assert spelled_out({**config, read: 3})[read] == 3


def test_deepseek_v4_reads_the_bases_of_its_two_kinds_of_positions() -> None:
    compress = {"rope_type": "yarn", "rope_theta": 5e4, "factor": 4.0, "original_max_position_embeddings": 16}
    tables = {"main": {"rope_type": "default", "rope_theta": THETA}, "compress": compress}
    found = spelled_out({"model_type": "deepseek_v4", "rope_parameters": tables})
    assert (found["rope_theta"], found["compress_rope_theta"]) == (THETA, 5e4)
    assert (found["rope_scaling"]["type"], found["rope_scaling"]["factor"]) == ("yarn", 4.0)


def test_rope_scaling_holds_where_both_spellings_are_there() -> None:
    linear = {"rope_type": "linear", "factor": 2.0}
    config = {"rope_scaling": linear, "rope_parameters": {"rope_type": "default", "rope_theta": THETA}}
    found = spelled_out({"model_type": "llama", **config})
    assert (found["rope_theta"], found["rope_scaling"]["factor"]) == (THETA, 2.0)


@pytest.mark.parametrize("architecture", ["gpt_oss", "mixtral"])
def test_yarn_may_lie_between_whole_dimensions(architecture: str) -> None:
    scaling: Json = {
        "factor": 4.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 500,
        "beta_slow": 6,
    }
    found = turns(newer(architecture, {"rope_type": "yarn", "truncate": False, **scaling}))

    def dimension(turned: float) -> float:
        return 8 * math.log(4096 / (turned * 2 * math.pi)) / math.log(THETA)

    low, high = dimension(500), dimension(6)
    for place in range(8):
        slow = min(max((place - low) / (high - low), 0), 1)
        inverse = THETA ** (-place / 8)
        expected = 1 / (slow * inverse / 4 + (1 - slow) * inverse)
        assert found[0][1]["_freqs"][place] == pytest.approx(expected, rel=1e-5)
    factor = turns(newer(architecture, {"rope_type": "yarn", "attention_factor": 1.25, **scaling}))
    assert factor[0][1]["mscale"] == 1.25


def test_one_of_two_scales_of_attention_counts_for_nothing_in_yarn() -> None:
    yarn: Json = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    expected = turns(newer("qwen3", yarn))
    for name in ("mscale", "mscale_all_dim"):
        assert turns(newer("qwen3", {**yarn, name: 0.7})) == expected
    other = turns(newer("qwen3", {**yarn, "mscale": 1.4, "mscale_all_dim": 0.7}))
    assert expected[0][1]["mscale"] == pytest.approx(0.1 * math.log(4) + 1)
    assert other[0][1]["mscale"] == pytest.approx((0.14 * math.log(4) + 1) / (0.07 * math.log(4) + 1))


@pytest.mark.parametrize(
    "kind",
    [
        *("apertus", "bailing_hybrid", "exaone4", "exaone_moe", "glm4_moe", "glm_moe_dsa", "gpt2", "lfm2"),
        *("longcat_flash", "mimo_v2_flash", "nanochat", "olmo_hybrid"),
    ],
)
def test_a_configuration_that_transformers_writes_has_what_mlx_lm_requires(kind: str) -> None:
    names = {"bailing_hybrid": ["BailingHybridForCausalLM"]}
    config = {**CONFIG_MAPPING[kind]().to_dict(), "model_type": kind, "architectures": names.get(kind)}
    _, arguments = classes_of(config)
    assert arguments.from_dict(config)


@pytest.mark.parametrize("kind", SHARING)
def test_a_model_may_have_no_shared_experts(kind: str) -> None:
    config = configuration(kind)
    name = next(name for name in SHARED if name in config)
    make, arguments = classes_of({**config, name: 0})
    model = make(arguments.from_dict({**config, name: 0}))
    assert not any("shared_expert" in path and found for path, found in tree_flatten(model.parameters()))


def test_a_size_of_zero_is_named() -> None:
    for kind in ("helium", "nemotron_h"):
        config = configuration(kind) | {"intermediate_size": 0}
        assert "intermediate_size 0 is not read" in turns(config)
    assert "n_shared_experts 0 is not read" in turns(configuration("dots1") | {"n_shared_experts": 0})


def test_olmo_hybrid_turns_nothing_where_its_base_is_null() -> None:
    config, _ = plain("olmo_hybrid")
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": None}
    assert turns(config) == []
    assert "rope_theta is null" in turns({**plain("olmo2")[0], "rope_parameters": config["rope_parameters"]})


def test_minicpm_3_scales_positions_as_its_configuration_says() -> None:
    config, _ = plain("minicpm3")
    config |= {"rope_scaling": None, "max_position_embeddings": 32768}
    assert {kind for kind, _ in turns(config)} == {"RoPE"}
    config["rope_scaling"] = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    assert {kind for kind, _ in turns(config)} == {"YarnRoPE"}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("deepseek_v3", "routed_scaling_factor"),
        ("falcon_h1", "mlp_multipliers"),
        ("granitemoehybrid", "mamba_d_head"),
    ],
)
def test_a_missing_field_means_what_transformers_takes_for_it(kind: str, name: str) -> None:
    config = {**CONFIG_MAPPING[kind]().to_dict(), "model_type": kind}
    _, arguments = classes_of(config)
    expected = getattr(arguments.from_dict(config), name)
    del config[name]
    assert getattr(arguments.from_dict(config), name) == expected


def test_exaone_4_has_its_layers_of_sliding_attention() -> None:
    config = {**CONFIG_MAPPING["exaone4"](num_hidden_layers=8).to_dict(), "model_type": "exaone4"}
    _, arguments = classes_of(config)
    assert arguments.from_dict(config).sliding_window_pattern == "LLLGLLLG"


def test_a_window_of_mimo_has_so_many_tokens_before_its_own() -> None:
    # transformers' class of the configuration adds the one, as the code does with which it was published.
    config = configuration("mimo_v2_flash") | {"sliding_window_size": 24}
    theirs = CONFIG_MAPPING["mimo_v2_flash"](sliding_window_size=24)
    assert classes_of(config)[1].from_dict(config).sliding_window_size == theirs.sliding_window == 25


@pytest.mark.parametrize("kind", ["gemma3_text", "gpt_oss"])
def test_windows_stay_where_transformers_does_not_read_that_they_are_unused(kind: str) -> None:
    config = configuration(kind) | {"num_hidden_layers": 2, "sliding_window_pattern": 2}
    config["layer_types"] = ["sliding_attention", "full_attention"]
    assert turns({**config, "use_sliding_window": False}) == turns(config)
    assert isinstance(turns(config), list)


def test_gpt_oss_turns_plainly_where_only_what_lies_behind_its_window_is_scaled() -> None:
    assert turns(newer("gpt_oss", {"rope_type": "dynamic", "factor": 4.0})) == turns(
        newer("gpt_oss", {"rope_type": "default"})
    )


def test_the_first_files_of_minicpm_turn_by_the_base_of_its_publisher() -> None:
    assert bases(turns(plain("minicpm")[0])) == {10000.0}


def test_the_first_files_of_phi_3_name_longrope_otherwise() -> None:
    scaling = {name: SCALINGS["longrope"][name][:4] for name in ("short_factor", "long_factor")}
    config = {**plain("phi3")[0], "original_max_position_embeddings": 16}
    found = [turns({**config, "rope_scaling": {**scaling, "type": name}}) for name in ("su", "longrope")]
    assert found[0] == found[1] != turns(config)
    assert isinstance(found[0], list)


def test_scalings_are_turned_by_or_refused_where_a_class_has_another_way() -> None:
    longrope = {"rope_type": "longrope", **SCALINGS["longrope"]}
    # This class makes no such module for want of the window's size.
    assert {kind for kind, _ in turns(newer("gpt_oss", longrope))} == {"SuScaledRoPE"}
    # In mlx-lm it turns halves of heads alone, where this class turns pairs.
    assert "'longrope' is not read" in turns(newer("ernie4_5", longrope))
    for kind in ("llama", "glm4_moe"):
        assert "'proportional' is not read" in turns(newer(kind, {"rope_type": "proportional"}))


@pytest.mark.parametrize(
    ("types", "count"), [(["dense", "dense", "sparse"], 2), (["sparse"] * 3, 0), (["dense"] * 3, 3)]
)
def test_the_first_layers_are_dense_as_their_types_say(types: list[str], count: int) -> None:
    given = {"num_hidden_layers": 3, "mlp_layer_types": types, "indexer_types": None}
    config = {**CONFIG_MAPPING["glm_moe_dsa"]().to_dict(), "model_type": "glm_moe_dsa", **given}
    assert classes_of(config)[1].from_dict(config).first_k_dense_replace == count
    config |= {"first_k_dense_replace": 1}
    assert classes_of(config)[1].from_dict(config).first_k_dense_replace == count


def test_layers_of_another_pattern_than_each_so_many_are_refused() -> None:
    types = ["full_attention", "linear_attention", "linear_attention", "full_attention"]
    config = {"model_type": "qwen3_next", "num_hidden_layers": 4, "layer_types": types}
    with pytest.raises(ValueError, match=r"^layer_types .* is not read"):
        refuse_unread(config, {"full_attention_interval": 4})


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (
            {"model_type": "laguna", "moe_apply_router_weight_on_input": True},
            "moe_apply_router_weight_on_input",
        ),
        ({"model_type": "dbrx", "ffn_config": {"ffn_act_fn": {"name": "gelu"}}}, "ffn_config"),
        ({"model_type": "dbrx", "ffn_config": {"moe_normalize_expert_weights": 2}}, "ffn_config"),
        ({"model_type": "gemma2", "attn_logit_softcapping": None}, "attn_logit_softcapping"),
        ({"model_type": "nemotron", "hidden_act": "gelu"}, "hidden_act"),
        ({"model_type": "gemma3_text", "hidden_activation": "gelu"}, "hidden_activation"),
        (
            {"model_type": "deepseek_v3", "num_experts_per_tok": 1, "norm_topk_prob": True},
            "num_experts_per_tok",
        ),
        ({"model_type": "phimoe", "num_experts_per_tok": 3}, "num_experts_per_tok"),
        (
            {"model_type": "mimo_v2_flash", "num_experts_per_tok": 1, "norm_topk_prob": True},
            "num_experts_per_tok",
        ),
        ({**LING, "architectures": ["BailingHybridForCausalLM"], "norm_topk_prob": False}, "norm_topk_prob"),
        (
            {**LING, "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention"] * 2},
            "layer_types",
        ),
        ({"model_type": "ernie4_5_moe", "moe_norm_min": 1.0}, "moe_norm_min"),
        ({"model_type": "falcon_h1", "mlp_bias": True}, "mlp_bias"),
        ({"model_type": "deepseek_v2", "rope_scaling": {"attention_factor": 1.3}}, "rope_scaling"),
        ({"model_type": "deepseek_v2", "rope_scaling": {"mscale_all_dim": 0.7}}, "rope_scaling"),
        ({"model_type": "kimi_linear", "layer_types": ["linear_attention"]}, "layer_types"),
        ({"model_type": "nemotron_h", "layers_block_type": ["full_attention", "mlp"]}, "layers_block_type"),
        ({"model_type": "qwen3_next", "linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
    ],
)
def test_what_a_class_takes_for_granted_is_refused_if_it_is_another(
    config: dict[str, Any], name: str
) -> None:
    with pytest.raises(ValueError, match=rf"^{name} .* is not read"):
        refuse_unread(config, {})
    others = {"ffn_config": {"ffn_act_fn": {"name": "silu"}}, "num_hidden_layers": 2, "layer_group_size": 2}
    refuse_unread({"model_type": config["model_type"], **others}, {})
    refuse_unread({"model_type": "gemma", "hidden_act": "gelu"}, {})
    refuse_unread({"model_type": "deepseek_v2", "norm_topk_prob": True}, {})
    types = ["linear_attention", "full_attention", "full_attention"]
    refuse_unread({**LING, "num_hidden_layers": 3, "layer_types": types}, {})


@pytest.mark.parametrize(
    ("kind", "changed", "name"),
    [
        ("afmoe", {"route_scale": None}, "route_scale"),
        ("dbrx", {"attn_config": {"clip_qkv": None}}, "attn_config.clip_qkv"),
    ],
)
def test_a_null_that_a_class_cannot_compute_with_is_named(
    kind: str, changed: Json, name: str, tmp_path: Path
) -> None:
    path = write(kind, tmp_path / kind) / "config.json"
    config = json.loads(path.read_text())
    part = {each: {**config[each], **held} for each, held in changed.items() if isinstance(held, dict)}
    path.write_text(json.dumps({**config, **changed, **part}))
    with pytest.raises(ServerError, match=f"does not run: .*null or alike .*: {name}"):
        Bench(path.parent, ModelOptions())


@pytest.mark.parametrize("family", ["idefics2", "llava_next", "llava_onevision", "paligemma", "aya_vision"])
def test_sizes_that_a_part_leaves_out_are_those_of_transformers(family: str) -> None:
    usual = CONFIG_MAPPING[family]().to_dict()
    given = {part: {"model_type": usual[part]["model_type"]} for part in ("text_config", "vision_config")}
    taken = CONFIG_MAPPING[family](**json.loads(json.dumps(given))).to_dict()
    read = for_mlx_vlm({"model_type": family, **given})
    for part in given:
        sizes = {name: taken[part][name] for name in OF_WHOLE}
        assert {name: read[part][name] for name in OF_WHOLE} == sizes


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_scaling_that_lacks_a_setting_or_is_unknown_is_told_as_such(kind: str) -> None:
    llama3 = {name: value for name, value in SCALINGS["llama3"].items() if name != "factor"}
    assert "'rope_type'='llama3': {'factor'}" in turns(newer(kind, {"rope_type": "llama3", **llama3}))
    assert "RoPE type ntk" in turns(older(kind, {"rope_type": "ntk", "factor": 2.0}))


@pytest.mark.parametrize("given", [{}, {"n_inner": None}])
def test_what_gpt_bigcode_does_not_say_of_its_inner_size_is_four_times_its_size(
    given: dict[str, Any],
) -> None:
    assert filled({"model_type": "gpt_bigcode", "n_embd": 64, **given})["n_inner"] == 256


@pytest.mark.parametrize("kind", ["apertus", "glm4_moe", "solar_open"])
def test_a_scaling_is_turned_by_where_only_what_is_stored_tells_the_ties(kind: str) -> None:
    told = older(kind, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16})
    told["tie_word_embeddings"] = False
    config = {name: value for name, value in told.items() if name != "tie_word_embeddings"}
    make, arguments = classes_of(config)
    config["tie_word_embeddings"] = False
    assert fingerprint(make(arguments.from_dict(config))) == turns(told)
    assert isinstance(turns(told), list)


def test_granite_without_experts_has_layers_of_the_size_of_the_shared_part() -> None:
    config = configuration("granitemoehybrid") | {"num_local_experts": 0, "shared_intermediate_size": 56}
    assert filled(config | {"intermediate_size": 96})["intermediate_size"] == 56


@pytest.mark.parametrize(
    ("name", "value"), [("eos_token_id", "2"), ("bos_token_id", [1]), ("initializer_range", "0.02")]
)
def test_a_wrong_value_that_changes_nothing_takes_nothing_from_other_fields(name: str, value: Any) -> None:
    config = {each: value for each, value in plain("llama")[0].items() if each != "rms_norm_eps"}
    assert turns_of({**config, name: value}) == turns_of(config)
    assert turns_of(config).taken["rms_norm_eps"] == 1e-6

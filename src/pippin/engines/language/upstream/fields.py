"""Fields that mlx-lm's classes take and configurations of transformers 5 leave out or write otherwise, and fields that
change what a model computes and that its class does not take."""

import ast
import contextlib
import inspect
import sys
from collections.abc import Callable, Container, Iterable, Mapping
from functools import cache
from typing import Any

from pippin.engines.language.configuration import Config, fields_of, head_size, turns_of, unread

BY_TANH = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh")
GELU = dict.fromkeys(("gemma", "gpt2", "gpt_neox"), ("gelu", *BY_TANH))
"""Names of one activation, and by type those that are all read. Gemma's `gelu` is that by tanh in transformers, too."""

NEUTRAL = (None, False)
COMPUTING = tuple(
    (
        "activation_function attn_logit_softcapping clip_qkv final_logit_softcapping hidden_act "
        "hidden_activation mamba_hidden_act mlp_hidden_act moe_norm_min moe_router_logit_softcapping norm_after "
        "qk_layernorm qk_norm_type residual_gate_temperature rope_interleave scale_attn_by_inverse_layer_idx "
        "scale_attn_weights swiglu_alpha swiglu_limit topk_method use_parallel_residual"
    ).split()
)
"""Fields that add nothing to the weights, and change the answers."""

ENCODING = tuple(
    (
        "activation_func apply_vit_abs_pos_embed is_causal merge_type mlp_type mm_projector_type norm_type "
        "pos_emb_interpolation_mode pos_emb_type position_embedding_type rope_freqs_for rope_mode "
        "rope_theta_rescale_factor sscp_conv_group_norm_eps use_absolute_position_embeddings"
    ).split()
)
"""Such fields of encoders of pictures and sound, and of what follows these."""


SEVERAL = "deepseek_v3 deepseek_v32 dots1 exaone_moe glm4_moe glm4_moe_lite glm_moe_dsa nemotron_h solar_open"
SUMMING = dict.fromkeys(
    [*SEVERAL.split(), *"glm4v_moe_text glm5_next_text mimo_v2_flash".split()], "norm_topk_prob"
) | {
    "afmoe": "num_experts_per_tok",  # always
    "kimi_linear": "moe_renormalize",
}
"""Types whose weights of experts sum to one, in the libraries' classes only where there are several, by the field that
says so."""

PATTERNS = {
    "full_attention": "sliding_window_pattern",
    "full_attention linear_attention": "full_attention_interval",
    "full_attention sliding_attention": "sliding_window_pattern",
}
"""By the types of layers, the older field that tells where those with full attention are."""


DERIVED: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "block_dim": lambda config: config.get("hidden_size"),
    "n_ctx": lambda config: config.get("n_positions"),
    "is_moe_layer": lambda config: [kind == "sparse" for kind in config["mlp_layer_types"]],
    "layer_types": lambda config: turns_of(config).types,
}
"""Fields that transformers leaves out where others tell them."""

KERNELS = "conv_L_cache conv_kernel linear_conv_kernel_dim mamba_d_conv short_conv_kernel_size".split()
"""Sizes of short convolutions, of which the libraries' classes keep one token less: with 1, they keep all."""

ALWAYS: dict[str, Config] = {
    "apertus": {"mlp_bias": False, "post_norm": False, "qk_norm": True},
    "glm_moe_dsa": {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1},
    "hunyuan_v1_moe": {
        "num_shared_expert": 1,
        "use_mixed_mlp_moe": True,
        "use_qk_norm": True,
        "use_cla": False,
        "cla_share_factor": 2,
    },
    "longcat_flash": {
        "attention_method": "MLA",
        "zero_expert_type": "identity",
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
    },
    "mimo_v2_flash": {
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "n_shared_experts": None,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
    },
}
"""Fields of which transformers' class of an architecture knows one value, and writes none."""


def filled(config: Config, required: Iterable[str] = ()) -> Config:
    """The configuration with what its architecture leaves out in the newest spelling, and with the fields that a class
    requires, as far as others tell them."""
    kind, found = str(config.get("model_type")), dict[str, Any]()
    config = {**ALWAYS.get(kind, {}), **config}
    for name in required:
        if config.get(name) is None and name in DERIVED:
            with contextlib.suppress(KeyError):
                config[name] = DERIVED[name](config)
    with contextlib.suppress(KeyError):  # older files have what newer ones leave out
        found = OMITTED[kind](config) if kind in OMITTED else {}
    # The layers of Gemma 4 have heads of unlike sizes.
    size = None if "kv_lora_rank" in config or kind == "gemma4_text" else head_size(config)
    found = {"head_dim": size, **found} if size is not None else found
    found = {
        name: value for name, value in found.items() if config.get(name) in (None, []) and value is not None
    }
    found |= _granite(config) if kind == "granitemoehybrid" else {}
    found |= _ling(config) if "BailingHybridForCausalLM" in (config.get("architectures") or ()) else {}
    if types := config.get("mlp_layer_types"):  # how many layers come before the first with experts
        found["first_k_dense_replace"] = [*types, "sparse"].index("sparse")
    # So many tokens before its own, as in SGLang, for which it was published, and in transformers.
    if kind == "mimo_v2_flash" and (size := config.get("sliding_window_size")):
        found["sliding_window_size"] = size + 1
    # Their classes scale the numbers before a head of its own alone. It gets the embedding's weights.
    if kind in ("minicpm", "minicpm3"):
        found["tie_word_embeddings"] = False
    # transformers takes this for `time_step_limit`. The usual one is no limit in the code of the publisher.
    if kind == "nemotron_h":
        least = config.get("time_step_min") or 0.0
        found["time_step_limit"] = (least if least > 0.001 else 0.0, float("inf"))
    # Its class gives positions no size of the window. The model gets those that need it afterwards.
    if kind == "gpt_oss" and (config.get("rope_scaling") or {}).get("rope_type") in ("dynamic", "longrope"):
        found["rope_scaling"] = None
    found |= _pattern(config) | _unshared(config)
    if isinstance(text := config.get("text_config"), dict):
        found["text_config"] = filled(text)
    return {**config, **found}


def refuse_unread(config: Config, taken: Mapping[str, Any]) -> None:
    """Raises `ValueError` for a field that a class of mlx-lm, which takes those `taken`, does not read."""
    refuse_left_out(config, taken)
    kind = config.get("model_type")
    if kind in SPECIAL and (name := SPECIAL[kind](config)):
        raise unread(f"{name} {config[name]!r}")


def refuse_left_out(config: Config, taken: Container[str]) -> None:
    """Raises `ValueError` for a field that is not as in most models of its type, and is not `taken` by the class."""
    refuse_unlike(config, taken, COMPUTING)
    summing = SUMMING.get(str(config.get("model_type")))
    if summing and config.get("num_experts_per_tok") == 1 and config.get(summing):
        with_it = "" if summing == "num_experts_per_tok" else f" with {summing}"
        raise unread(f"num_experts_per_tok 1{with_it}")
    refuse_order(config, taken, "full_attention_interval", "linear_attention")
    if short := [name for name in KERNELS if config.get(name) == 1]:
        raise unread(f"{short[0]} 1")


def refuse_order(config: Config, taken: Container[str], field: str, kind: str) -> None:
    """Raises `ValueError` for types of layers that `field` can't tell, where the class takes that alone: of how many
    layers the last has full attention, and the others `kind`."""
    if field not in taken or "layer_types" in taken:
        return
    count, every = config.get("num_hidden_layers") or 0, _pattern(config).get(field)
    every = every or config.get(field) or 4
    own = [kind if place % every else "full_attention" for place in range(1, count + 1)]
    types = config.get("layer_types") or own
    if types != own or "full_attention" not in own:
        raise unread(f"layer_types {types!r}")


def refuse_unlike(
    config: Config, taken: Container[str], names: Iterable[str], own: Mapping[str, Any] | None = None
) -> None:
    """Raises `ValueError` for a field of these names that is not as usual, and is not `taken`. A class's `own` defaults
    are usual where transformers has none."""
    usual = {**(own or {}), **fields_of(config).defaults}
    for name in names:
        if name not in usual or name not in config:
            continue
        value, default = config[name], usual[name]
        alikes = NEUTRAL, GELU.get(str(config.get("model_type")), BY_TANH)
        if value == default or any(value in alike and default in alike for alike in alikes):
            continue
        if name not in taken:
            raise unread(f"{name} {value!r}")


@cache
def names_read(module: str) -> set[str]:
    """The names of attributes that the code of a module reads: some classes keep fields that nothing asks for."""
    nodes = ast.walk(ast.parse(inspect.getsource(sys.modules[module])))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


def with_pattern(config: Config) -> Config:
    """The configuration with the fields that older classes read instead of the types of all layers, and None where
    there are no shared experts."""
    return {**config, **_pattern(config), **_unshared(config)}


def _unshared(config: Config) -> Config:
    # Two classes have some always: Nemotron H's of a size of their own, and that of dots.llm1.
    none = config.get("n_shared_experts") == 0 and config.get("model_type") not in ("dots1", "nemotron_h")
    return {"n_shared_experts": None} if none else {}


def _pattern(config: Config) -> Config:
    """Which layer is the first that sees all tokens, and so each that comes as many behind it: transformers lists the
    types of all layers instead."""
    types = config.get("layer_types") or []
    if config.get("model_type") == "exaone4":  # whose class reads a letter for each layer
        types = types or turns_of(config).types or []
        letters = ("L" if kind == "sliding_attention" else "G" for kind in types)
        return {"sliding_window_pattern": "".join(letters) if config.get("sliding_window") else None}
    name = PATTERNS.get(" ".join(sorted({*types})), "")
    return {name: types.index("full_attention") + 1} if name else {}


def _granite(config: Config) -> Config:
    """The types of layers, and the size of dense ones, under the names that mlx-lm's class has for them."""
    kinds = {"linear_attention": "mamba", "full_attention": "attention"}
    types = config.get("layer_types")
    found: Config = {} if types is None else {"layer_types": [kinds.get(each, each) for each in types]}
    # transformers' class reads the size of the shared part alone where there are no experts.
    if not config.get("num_local_experts") and (size := config.get("shared_intermediate_size")):
        found["intermediate_size"] = size
    return {"position_embedding_type": config.get("position_embedding_type") or "nope", **found}


def _vocabulary(config: Config) -> Config:
    """Classes of models with a text model have a size of their own that stands above its own."""
    return {"vocab_size": (config.get("text_config") or {}).get("vocab_size")}


def _kimi_linear(config: Config) -> Config:
    types = config.get("layer_types")
    if types is None:
        return {}
    layers = {kind: [place for place, each in enumerate(types, 1) if each == kind] for kind in {*types}}
    linear = {
        "num_heads": config["linear_num_heads"],
        "head_dim": config["linear_head_dim"],
        "short_conv_kernel_size": config["linear_conv_kernel_dim"],
        "kda_layers": layers.get("linear_attention", []),
        "full_attn_layers": layers.get("full_attention", []),
    }
    # The layers with full attention do not turn.
    return {"linear_attn_config": linear, "rope_theta": 1e4, "mla_use_nope": True}


def _ling(config: Config) -> Config:
    """Ling 3.0's sizes under the names that mlx-lm's class has for them."""
    size = config.get("linear_head_dim", config.get("head_dim"))
    return {"moe_shared_expert_intermediate_size": config["moe_intermediate_size"], "head_dim": size}


def _mimo(config: Config) -> Config:
    """MiMo's fields as they were published, of which transformers writes one for both types of layers."""
    sizes = ("num_attention_heads", "head_dim", "v_head_dim")
    return {
        **{f"swa_{name}": config[name] for name in sizes},
        "swa_num_key_value_heads": 2 * config["num_key_value_heads"],
        "hybrid_layer_pattern": [int(kind == "sliding_attention") for kind in config["layer_types"]],
        "moe_layer_freq": [int(kind == "sparse") for kind in config["mlp_layer_types"]],
        "sliding_window_size": config["sliding_window"],
        "layernorm_epsilon": config["rms_norm_eps"],
        "partial_rotary_factor": 0.334,
    }


OMITTED: dict[str, Callable[[Config], Config]] = {
    "mimo_v2_flash": _mimo,
    "gemma3": _vocabulary,
    "gemma4": _vocabulary,
    "kimi_linear": _kimi_linear,
    "gpt_bigcode": lambda config: {"n_inner": 4 * config["n_embd"]},
    "deepseek_v2": lambda config: {"rope_scaling": {"type": "yarn", "factor": 1.0}},
    "falcon_h1": lambda config: {
        "mamba_d_ssm": int((config.get("mamba_expand") or 2) * config["hidden_size"])
    },
    "mamba2": lambda config: {"intermediate_size": int(config.get("expand", 2) * config["hidden_size"])},
    "minicpm": lambda config: {"rope_theta": 10000.0},
    "minicpm3": lambda config: {"rope_scaling": {"rope_type": "default"}},
    "minimax_m2": lambda config: {"shared_intermediate_size": 0, "rotary_dim": config.get("head_dim")},
    "solar_open": lambda config: {
        "intermediate_size": config["moe_intermediate_size"],
        "first_k_dense_replace": 0,
        "partial_rotary_factor": 1.0,
    },
}
"""What the published models of an architecture have all alike, or what follows from other fields."""


def _other_experts(config: Config) -> str:
    """DBRX's class has experts of one activation, whose weights sum to one."""
    experts = config.get("ffn_config") or {}
    activation = (experts.get("ffn_act_fn") or {}).get("name", "silu")
    usual = activation == "silu" and experts.get("moe_normalize_expert_weights", 1) == 1
    return "" if usual else "ffn_config"


def _other_layers(config: Config) -> str:
    """Ling's classes have full attention in the last layer of each group, and in all behind the last whole group.
    Those of 3.0 have weights of experts sum to one."""
    third = {"BailingHybridForCausalLM", "BailingMoeV3ForCausalLM"} & {*(config.get("architectures") or ())}
    if third and config.get("norm_topk_prob") is False:
        return "norm_topk_prob"
    count, every = config["num_hidden_layers"], config["layer_group_size"]
    full = (place % every == 0 or place > count // every * every for place in range(1, count + 1))
    own = ["full_attention" if each else "linear_attention" for each in full]
    return "" if config.get("layer_types") in (None, own) else "layer_types"


def _one_kind(config: Config) -> str:
    """Nemotron H's and Kimi Linear's classes make masks by the first layer of each kind of attention."""
    name = next((name for name in LAYERS if config.get(name)), "")
    kinds = {*config.get(name, ())}
    both = kinds & {"*", "attention", "full_attention"} and kinds & {"M", "mamba", "linear_attention"}
    return "" if both else name


LAYERS = ("hybrid_override_pattern", "layers_block_type", "layer_types")


def _other_yarn(scaling: Config) -> bool:
    """Whether positions turn otherwise than by YaRN in the one form that DeepSeek V2's class has."""
    alone = ("mscale" in scaling) != ("mscale_all_dim" in scaling)
    other = scaling.get("rope_type", "yarn") != "yarn" or {"attention_factor", "truncate"} & scaling.keys()
    return alone or bool(other)


CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
FALCONS = ("attention_bias", "mamba_proj_bias", "mlp_bias", "projectors_bias")
"""Its class multiplies matrices by factors, and not what is added to their products."""
NO_LIMITS = [0.0, float("inf")]

SPECIAL: dict[str, Callable[[Config], str]] = {
    "bailing_hybrid": _other_layers,
    "dbrx": _other_experts,
    "deepseek_v2": lambda config: "rope_scaling" if _other_yarn(config.get("rope_scaling") or {}) else "",
    # Where no layer has a window and one is named, none turns; the class turns all.
    "exaone_moe": lambda config: (
        "layer_types"
        if config.get("sliding_window") and {*(config.get("layer_types") or ())} == {"full_attention"}
        else ""
    ),
    "falcon_h1": lambda config: next(
        (name for name in FALCONS if config.get(name)),
        "" if list(config.get("time_step_limit") or NO_LIMITS) == NO_LIMITS else "time_step_limit",
    ),
    "gemma2": lambda config: next((name for name in CAPS if config.get(name, 0) is None), ""),
    "gpt_bigcode": lambda config: "" if config.get("multi_query", True) else "multi_query",
    "laguna": lambda config: (
        "moe_apply_router_weight_on_input" if config.get("moe_apply_router_weight_on_input") else ""
    ),
    "nemotron": lambda config: "" if config.get("hidden_act", "relu2") == "relu2" else "hidden_act",
    "kimi_linear": _one_kind,
    "nemotron_h": _one_kind,
    "qwen2_moe": lambda config: "norm_topk_prob" if config.get("norm_topk_prob") else "",
    "phimoe": lambda config: "" if config.get("num_experts_per_tok", 2) == 2 else "num_experts_per_tok",
}
"""By type, the name of a field that its class takes for granted, if it is another; else nothing."""

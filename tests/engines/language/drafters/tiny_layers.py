"""Tiny random checkpoints whose head for multi-token prediction lies behind the last layer, as they are published."""

import importlib
import json
from operator import attrgetter
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import longcat_flash

from tests.engines.language.tiny_heads import spread
from tests.engines.tiny_models import COMMON, HEADS, tiny_model

DEEPSEEK: dict[str, Any] = {
    **HEADS,
    **COMMON,
    "tie_word_embeddings": False,
    "num_hidden_layers": 3,
    "num_nextn_predict_layers": 1,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "attention_bias": False,
    "rope_scaling": None,
    "partial_rotary_factor": 0.5,
    "use_qk_norm": True,
}
LATENT = {
    name: DEEPSEEK[name] for name in ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim")
}
LATENT |= {"v_head_dim": 16}
LING: dict[str, Any] = {
    **HEADS,
    **COMMON,
    "tie_word_embeddings": False,
    "num_nextn_predict_layers": 1,
    "first_k_dense_replace": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "moe_router_enable_expert_bias": True,
    "norm_topk_prob": True,
    "score_function": "sigmoid",
    "routed_scaling_factor": 2.5,
    "use_qk_norm": True,
    "norm_head": False,
}
LING_HYBRID: dict[str, Any] = {
    **LING,
    **LATENT,
    "num_hidden_layers": 4,
    "layer_group_size": 2,
    "group_norm_size": 4,
    "rope_interleave": True,
    "partial_rotary_factor": 0.5,
}
LONGCAT: dict[str, Any] = {
    **COMMON,
    **{name: value for name, value in LATENT.items() if name != "num_key_value_heads"},
    "hidden_size": 64,
    "num_layers": 2,
    "num_attention_heads": 4,
    "attention_method": "MLA",
    "attention_bias": False,
    "ffn_hidden_size": 96,
    "expert_ffn_hidden_size": 32,
    "moe_topk": 2,
    "n_routed_experts": 4,
    "zero_expert_num": 2,
    "zero_expert_type": "identity",
    "routed_scaling_factor": 1.0,
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
}
YARN: dict[str, Any] = {
    "type": "yarn",
    "factor": 10,
    "original_max_position_embeddings": 32,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1,
    "mscale_all_dim": 1,
}
INDEX: dict[str, Any] = {"index_topk": 6, "index_head_dim": 32, "index_n_heads": 2}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": {**DEEPSEEK, **INDEX},
    "glm_moe_dsa": {
        **{name: value for name, value in DEEPSEEK.items() if name != "rope_scaling"},
        **INDEX,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "glm4_moe": {**DEEPSEEK, "num_key_value_heads": 2},
    "glm4_moe_lite": {**DEEPSEEK, "partial_rotary_factor": 1.0},
    "mimo": {
        **HEADS,
        **COMMON,
        "num_hidden_layers": 2,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
    },
    "mimo_v2_flash": {
        **{name: value for name, value in DEEPSEEK.items() if name != "rope_scaling"},
        "hybrid_layer_pattern": [0, 1, 0],
        "moe_layer_freq": [0, 1, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "sliding_window_size": 16,
        "layernorm_epsilon": 1e-5,
        "swa_rope_theta": 5000.0,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 1,
        "swa_head_dim": 16,
        "swa_v_head_dim": 16,
        "v_head_dim": 16,
        "partial_rotary_factor": 0.5,
        "n_shared_experts": None,
    },
    "step3p5": {
        **HEADS,
        **COMMON,
        "tie_word_embeddings": False,
        "num_hidden_layers": 4,
        "num_nextn_predict_layers": 1,
        "num_attention_groups": 2,
        "moe_intermediate_size": 32,
        "moe_num_experts": 4,
        "moe_top_k": 2,
        "share_expert_dim": 32,
        "moe_layers_enum": "1,2,3",
        "layer_types": [*(["full_attention", "sliding_attention"] * 2), "full_attention"],
        "sliding_window": 16,
        "attention_other_setting": {"num_attention_heads": 8, "num_attention_groups": 2},
        "rope_theta": [10000.0, 5000.0, 10000.0, 5000.0, 2000.0],
        "partial_rotary_factors": [0.5, 1.0, 0.5, 1.0, 1.0],
    },
    "exaone_moe": {
        **HEADS,
        **COMMON,
        "tie_word_embeddings": False,
        "num_hidden_layers": 4,
        "num_nextn_predict_layers": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "moe_intermediate_size": 32,
        "sliding_window": 16,
        "layer_types": [*(["sliding_attention"] * 3), "full_attention"],
        "is_moe_layer": [False, True, True, True],
        "mtp_layer_types": ["full_attention"],
        "mtp_sliding_windows": [0],
    },
    "bailing_moe": {**LING, "num_hidden_layers": 2},
    "bailing_hybrid": LING_HYBRID,
    "bailing_moe_v3": {
        **LING_HYBRID,
        "model_type": "bailing_hybrid",
        "architectures": ["BailingMoeV3ForCausalLM"],
        "short_conv_kernel_size": 4,
        "kda_lower_bound": -5.0,
        "kda_safe_gate": True,
        "no_kda_lora": True,
    },
    "longcat_flash": LONGCAT,
    "longcat_flash_ngram": {**LONGCAT, "ngram_vocab_size_ratio": 2, "rope_scaling": YARN},
    "ernie4_5_moe": {
        **HEADS,
        **COMMON,
        "use_bias": False,
        "num_hidden_layers": 2,
        "num_nextn_predict_layers": 1,
        "moe_num_experts": 4,
        "moe_layer_start_index": 1,
        "moe_intermediate_size": 32,
        "moe_k": 2,
        "moe_num_shared_experts": 1,
    },
}
DEEPER: dict[str, dict[str, Any]] = {
    "mimo_v2_flash": {"hybrid_layer_pattern": [0, 1, 0, 1], "moe_layer_freq": [0, 1, 1, 0]},
    "exaone_moe": {
        "layer_types": [*(["sliding_attention"] * 3), "full_attention", "full_attention"],
        "is_moe_layer": [False, True, True, True, False],
    },
    "ernie4_5_moe": {"moe_layer_end_index": 1},
}
"""What else a model has whose last layer is the head's."""


class DenseLayer(nn.Module):  # type: ignore[misc] # mlx has no types
    """LongCat's head: attention and network of its model's layers, each once."""

    def __init__(self, args: longcat_flash.ModelArgs) -> None:
        super().__init__()
        self.self_attn = longcat_flash.LongcatFlashMLA(args)
        self.mlp = longcat_flash.LongcatFlashMLP(args)
        self.input_layernorm = nn.RMSNorm(args.hidden_size, args.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(args.hidden_size, args.rms_norm_eps)

    def __call__(self, states: mx.array, mask: mx.array, cache: None) -> mx.array:
        states = states + self.self_attn(self.input_layernorm(states), mask, cache)
        return states + self.mlp(self.post_attention_layernorm(states))


def deeper_model(architecture: str) -> Any:
    """A model of mlx-lm with one layer more than the checkpoint's: the last is what the head's is."""
    module = importlib.import_module(f"mlx_lm.models.{architecture}")
    config = {"model_type": architecture, **CONFIGURATIONS[architecture], **DEEPER.get(architecture, {})}
    if architecture.startswith("longcat_flash"):
        args = module.ModelArgs.from_dict(config)
        model = module.Model(args)
        model.model.layers.append(DenseLayer(args))
        return model
    config["num_hidden_layers"] += 1
    return module.Model(module.ModelArgs.from_dict(config))


def checkpoint(
    architecture: str, folder: Path, *, predictable: bool = False
) -> tuple[Path, dict[str, mx.array]]:
    """A folder, and the head's weights: those around its layer under DeepSeek's names, the layer's under mlx-lm's.

    `predictable`: attention, networks and n-grams add next to nothing to the embeddings of the model and its head, so
    that both say the same after the same token."""
    tiny_model("llama", folder)  # for its tokenizer
    config = {"model_type": architecture, **CONFIGURATIONS[architecture]}
    last, size = last_layer(config), config["hidden_size"]
    weights = spread(deeper_model(architecture), 7)
    if predictable:
        small = ("o_proj", "dense.", "down_proj", "post_projs")
        weights = {
            name: array * 0.001 if any(each in name for each in small) else array
            for name, array in weights.items()
        }
    mx.random.seed(11)
    layer = {
        name.removeprefix(f"model.layers.{last}."): weights.pop(name)
        for name in list(weights)
        if name.startswith(f"model.layers.{last}.")
    }
    around = {f"{name}.weight": 1 + 0.2 * mx.random.normal((size,)) for name in ("enorm", "hnorm")}
    norm = around["shared_head.norm.weight"] = 1 + 0.2 * mx.random.normal((size,))
    if architecture == "ernie4_5_moe":  # there it is the model's
        weights["model.norm.weight"] = norm
    around["eh_proj.weight"] = mx.random.normal((size, 2 * size)) * 0.1
    if predictable:
        around = {name: mx.ones((size,)) for name in around if "norm" in name}
        around["eh_proj.weight"] = mx.concatenate([mx.eye(size), mx.zeros((size, size))], axis=1)
        around["shared_head.norm.weight"] = weights["model.norm.weight"]
    head = {**around, **{f"layer.{name}": array for name, array in layer.items()}}
    weights |= published(architecture, around, layer, config)
    if architecture == "step3p5":
        weights = _of_step(weights)
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder, head


def last_layer(config: dict[str, Any]) -> int:
    """The number that a layer behind the model's last one would have."""
    found: int = config.get("num_hidden_layers") or config["num_layers"]
    return found


OF_LONGCAT: tuple[str, dict[str, str]] = (
    "model.mtp.",
    {
        "enorm": "layers.0.enorm.m",
        "hnorm": "layers.0.hnorm.m",
        "eh_proj": "layers.0.eh_proj",
        "shared_head.norm": "norm",
        "mlp.gate_proj": "layers.0.transformer_layer.mlp.gate_proj",
        "mlp.up_proj": "layers.0.transformer_layer.mlp.up_proj",
        "mlp.down_proj": "layers.0.transformer_layer.mlp.down_proj",
        "": "layers.0.",
    },
)
PUBLISHED: dict[str, tuple[str, dict[str, str]]] = {
    "mimo": (
        "model.mtp_layers.0.",
        {
            "enorm": "token_layernorm",
            "hnorm": "hidden_layernorm",
            "eh_proj": "input_proj",
            "shared_head.norm": "final_layernorm",
        },
    ),
    "mimo_v2_flash": (
        "model.mtp.layers.0.",
        {"shared_head.norm": "final_layernorm", "post_attention_layernorm": "pre_mlp_layernorm"},
    ),
    "exaone_moe": (
        "mtp.",
        {
            "enorm": "pre_fc_norm_embedding",
            "hnorm": "pre_fc_norm_hidden",
            "eh_proj": "fc",
            "shared_head.norm": "norm",
            "": "layers.0.",
        },
    ),
    "longcat_flash": OF_LONGCAT,
    "longcat_flash_ngram": OF_LONGCAT,
    "ernie4_5_moe": (
        "model.mtp_",
        {
            "enorm": "emb_norm.0",
            "hnorm": "hidden_norm.0",
            "eh_proj": "linear_proj.0",
            "": "block.0.",
        },
    ),
}
"""What names begin with; what the parts are called whose names are not those of DeepSeek and mlx-lm; under "", what
comes before the names of all others."""
OF_LING = {"shared_head.norm": "final_layernorm", "mlp.gate.gate_proj": "mlp.gate"}

EMBEDDINGS = {
    "bailing_moe": "word_embeddings",
    "bailing_hybrid": "word_embeddings",
    "bailing_moe_v3": "word_embeddings",
    "longcat_flash_ngram": "ngram_embeddings.word_embeddings",
}
"""Where a model has the embeddings of words, if not in `embed_tokens`."""


def published(
    architecture: str, around: dict[str, mx.array], layer: dict[str, mx.array], config: dict[str, Any]
) -> dict[str, mx.array]:
    """A head's weights under the names of its publisher."""
    behind = (f"model.layers.{last_layer(config)}.", OF_LING if architecture.startswith("bailing") else {})
    prefix, names = PUBLISHED.get(architecture, behind)
    found: dict[str, mx.array] = {}
    for name, array in {**around, **_taken_apart(layer, config)}.items():
        part, _, kind = name.rpartition(".")
        found[f"{prefix}{names.get(part, names.get('', '') + part)}.{kind}"] = array
    match architecture:
        case "mimo":  # its projection has the state first
            projection = around["eh_proj.weight"]
            size = projection.shape[0]
            found[f"{prefix}input_proj.weight"] = mx.concatenate(
                [projection[:, size:], projection[:, :size]], axis=1
            )
        case "step3p5":
            found = {
                name.replace(prefix, f"{prefix}transformer.")
                if "proj" in name and "eh_proj" not in name
                else name: array
                for name, array in found.items()
            }
        case "longcat_flash" | "longcat_flash_ngram":
            found["model.mtp.embed_tokens.weight"] = mx.zeros((config["vocab_size"], config["hidden_size"]))
        case "ernie4_5_moe":
            del found["model.mtp_block.0.shared_head.norm.weight"]
    return found


def _taken_apart(layer: dict[str, mx.array], config: dict[str, Any]) -> dict[str, mx.array]:
    """With an array for each expert, and what makes keys and values of latent vectors in one piece."""
    found: dict[str, mx.array] = {}
    for name, array in layer.items():
        if ".switch_mlp." in name:
            for expert, own in enumerate(array):
                found[name.replace("switch_mlp", f"experts.{expert}")] = own
        elif "unembed_out" not in name and "embed_q" not in name:
            found[name] = array
        elif "embed_q" in name:
            keys = array.swapaxes(-1, -2)
            both = mx.concatenate([keys, layer[name.replace("embed_q", "unembed_out")]], axis=1)
            found[name.replace("embed_q", "kv_b_proj")] = both.reshape(-1, config["kv_lora_rank"])
    return found


def _of_step(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """Under the names that Step publishes, its norms' weights less one."""
    named = {
        ".mlp.switch_mlp.": ".moe.",
        ".mlp.gate.gate.": ".moe.gate.",
        ".mlp.gate.router_bias": ".moe.router_bias",
        ".mlp.share_expert.": ".share_expert.",
    }
    found: dict[str, mx.array] = {}
    for name, array in weights.items():
        for ours, theirs in named.items():
            name = name.replace(ours, theirs)
        found[name] = array - 1 if "norm" in name and name.endswith(".weight") else array
    return found


class Oracle:
    """What a head says, by the formula of DeepSeek V3's report over a whole sequence, without a cache."""

    def __init__(self, architecture: str, head: dict[str, mx.array], model: nn.Module) -> None:
        self.weights, self.model = head, model
        deeper = deeper_model(architecture)
        self.layer = deeper.layers[-1]
        own = {
            name.removeprefix("layer."): array for name, array in head.items() if name.startswith("layer.")
        }
        self.layer.load_weights(list(own.items()))
        self.window = CONFIGURATIONS[architecture].get("sliding_window_size")
        self.norm_first = architecture != "step3p5"
        self.embed = attrgetter(EMBEDDINGS.get(architecture, "embed_tokens"))(model.model)
        self._project = model.get("lm_head", self.embed.as_linear)

    def draft(self, tokens: list[int], states: mx.array, count: int) -> list[int]:
        """The likeliest `count` tokens after these, of which the model has left `states` [tokens - 1, size]."""
        known, found = tokens[1:], list[int]()
        for _ in range(count):
            own = self._states(known, states)
            normed = mx.fast.rms_norm(own, self.weights["shared_head.norm.weight"], 1e-5)
            found.append(int(mx.argmax(self._project(normed[-1:]))))
            # What it said itself it starts from next.
            following = normed if self.norm_first else own
            states = mx.concatenate([states, following[-1:]])
            known = [*known, found[-1]]
        return found

    def _states(self, tokens: list[int], states: mx.array) -> mx.array:
        embedded = self.embed(mx.array(tokens))
        parts = [
            mx.fast.rms_norm(embedded, self.weights["enorm.weight"], 1e-5),
            mx.fast.rms_norm(states, self.weights["hnorm.weight"], 1e-5),
        ]
        joined = mx.concatenate(parts, axis=-1) @ self.weights["eh_proj.weight"].T
        places = mx.arange(len(tokens))
        mask = places[:, None] >= places[None]
        if self.window is not None:
            mask = mask & (places[:, None] < places[None] + self.window)
        found: mx.array = self.layer(joined[None], mask, None)[0]
        return found

"""Tiny random checkpoints whose head for multi-token prediction lies behind the last layer, as they are published."""

import importlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

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
}
DEEPER: dict[str, dict[str, Any]] = {
    "mimo_v2_flash": {"hybrid_layer_pattern": [0, 1, 0, 1], "moe_layer_freq": [0, 1, 1, 0]},
}
"""What else a model has whose last layer is the head's."""


def deeper_model(architecture: str) -> Any:
    """A model of mlx-lm with one layer more than the checkpoint's: the last is what the head's is."""
    module = importlib.import_module(f"mlx_lm.models.{architecture}")
    config = {"model_type": architecture, **CONFIGURATIONS[architecture], **DEEPER.get(architecture, {})}
    config["num_hidden_layers"] += 1
    return module.Model(module.ModelArgs.from_dict(config))


def checkpoint(
    architecture: str, folder: Path, *, predictable: bool = False
) -> tuple[Path, dict[str, mx.array]]:
    """A folder, and the head's weights: those around its layer under DeepSeek's names, the layer's under mlx-lm's.

    `predictable`: attention and networks add next to nothing to the embeddings of the model and its head, so that both
    say the same after the same token."""
    tiny_model("llama", folder)  # for its tokenizer
    config = {"model_type": architecture, **CONFIGURATIONS[architecture]}
    last, size = config["num_hidden_layers"], config["hidden_size"]
    weights = spread(deeper_model(architecture), 7)
    if predictable:
        weights = {
            name: array * 0.001 if "o_proj" in name or "down_proj" in name else array
            for name, array in weights.items()
        }
    mx.random.seed(11)
    layer = {
        name.removeprefix(f"model.layers.{last}."): weights.pop(name)
        for name in list(weights)
        if name.startswith(f"model.layers.{last}.")
    }
    around = {f"{name}.weight": 1 + 0.2 * mx.random.normal((size,)) for name in ("enorm", "hnorm")}
    around["shared_head.norm.weight"] = 1 + 0.2 * mx.random.normal((size,))
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


def published(
    architecture: str, around: dict[str, mx.array], layer: dict[str, mx.array], config: dict[str, Any]
) -> dict[str, mx.array]:
    """A head's weights under the names of its publisher."""
    last = config["num_hidden_layers"]
    prefix = {"mimo": "model.mtp_layers.0.", "mimo_v2_flash": "model.mtp.layers.0."}.get(
        architecture, f"model.layers.{last}."
    )
    names = {
        "mimo": {
            "enorm": "token_layernorm",
            "hnorm": "hidden_layernorm",
            "eh_proj": "input_proj",
            "shared_head.norm": "final_layernorm",
        },
        "mimo_v2_flash": {
            "shared_head.norm": "final_layernorm",
            "post_attention_layernorm": "pre_mlp_layernorm",
        },
    }.get(architecture, {})
    found: dict[str, mx.array] = {}
    for name, array in {**around, **_taken_apart(layer, config)}.items():
        part, _, kind = name.rpartition(".")
        found[f"{prefix}{names.get(part, part)}.{kind}"] = array
    if architecture == "mimo":  # its projection has the state first
        projection = around["eh_proj.weight"]
        size = projection.shape[0]
        found[f"{prefix}input_proj.weight"] = mx.concatenate(
            [projection[:, size:], projection[:, :size]], axis=1
        )
    if architecture == "step3p5":
        found = {
            name.replace(prefix, f"{prefix}transformer.")
            if "proj" in name and "eh_proj" not in name
            else name: array
            for name, array in found.items()
        }
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
    if "self_attn.embed_q.weight" in layer:
        keys = layer["self_attn.embed_q.weight"].swapaxes(-1, -2)
        both = mx.concatenate([keys, layer["self_attn.unembed_out.weight"]], axis=1)
        found["self_attn.kv_b_proj.weight"] = both.reshape(-1, config["kv_lora_rank"])
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

    def draft(self, tokens: list[int], states: mx.array, count: int) -> list[int]:
        """The likeliest `count` tokens after these, of which the model has left `states` [tokens - 1, size]."""
        known, found = tokens[1:], list[int]()
        for _ in range(count):
            own = self._states(known, states)
            normed = mx.fast.rms_norm(own, self.weights["shared_head.norm.weight"], 1e-5)
            found.append(int(mx.argmax(self.model.lm_head(normed[-1:]))))
            # What it said itself it starts from next.
            following = normed if self.norm_first else own
            states = mx.concatenate([states, following[-1:]])
            known = [*known, found[-1]]
        return found

    def _states(self, tokens: list[int], states: mx.array) -> mx.array:
        embedded = self.model.model.embed_tokens(mx.array(tokens))
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

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
}


def deeper_model(architecture: str) -> Any:
    """A model of mlx-lm with one layer more than the checkpoint's: the last is what the head's is."""
    module = importlib.import_module(f"mlx_lm.models.{architecture}")
    config = {"model_type": architecture, **CONFIGURATIONS[architecture]}
    config["num_hidden_layers"] += 1
    return module.Model(module.ModelArgs.from_dict(config))


def checkpoint(
    architecture: str, folder: Path, *, predictable: bool = False
) -> tuple[Path, dict[str, mx.array]]:
    """A folder, and the head's weights: those around its layer under DeepSeek's names, the layer's under mlx-lm's.

    `predictable`: attention and networks add next to nothing to the embeddings of the model and its head, so
    that both say the same after the same token."""
    tiny_model("llama", folder)  # for its tokenizer
    config = {"model_type": architecture, **CONFIGURATIONS[architecture]}
    behind, size = f"model.layers.{config['num_hidden_layers']}.", config["hidden_size"]
    weights = spread(deeper_model(architecture), 7)
    if predictable:
        small = ("o_proj", "down_proj")
        weights = {
            name: array * 0.001 if any(each in name for each in small) else array
            for name, array in weights.items()
        }
    mx.random.seed(11)
    layer = {
        name.removeprefix(behind): weights.pop(name) for name in list(weights) if name.startswith(behind)
    }
    around = {f"{name}.weight": 1 + 0.2 * mx.random.normal((size,)) for name in ("enorm", "hnorm")}
    around["shared_head.norm.weight"] = 1 + 0.2 * mx.random.normal((size,))
    around["eh_proj.weight"] = mx.random.normal((size, 2 * size)) * 0.1
    if predictable:
        around = {name: mx.ones((size,)) for name in around if "norm" in name}
        around["eh_proj.weight"] = mx.concatenate([mx.eye(size), mx.zeros((size, size))], axis=1)
        around["shared_head.norm.weight"] = weights["model.norm.weight"]
    head = {**around, **{f"layer.{name}": array for name, array in layer.items()}}
    published = {**around, **_taken_apart(layer, config)}
    weights |= {f"{behind}{name}": array for name, array in published.items()}
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder, head


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
        self.embed = model.model.embed_tokens
        self._project = model.get("lm_head", self.embed.as_linear)

    def draft(self, tokens: list[int], states: mx.array, count: int) -> list[int]:
        """The likeliest `count` tokens after these, of which the model has left `states` [tokens - 1, size]."""
        known, found = tokens[1:], list[int]()
        for _ in range(count):
            own = self._states(known, states)
            normed = mx.fast.rms_norm(own, self.weights["shared_head.norm.weight"], 1e-5)
            found.append(int(mx.argmax(self._project(normed[-1:]))))
            # What it said itself it starts from next.
            states = mx.concatenate([states, normed[-1:]])
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
        found: mx.array = self.layer(joined[None], mask, None)[0]
        return found

"""Encoders that mlx-vlm computes as a relative: as BERT, whose arrays have other names, DistilBERT, ELECTRA with
narrow embeddings, and Nomic's BERT and GTE with rotary positions and gated layers; as RoBERTa MPNet, with what the
distances of tokens add to attention. The formulas are transformers'."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from pippin.engines.language.configuration import rotary_tables, unread

RELATIVES: Final = {
    "distilbert": "bert",
    "electra": "bert",
    "gte": "bert",
    "mpnet": "xlm_roberta",
    "new": "bert",
    "nomic_bert": "bert",
}
"""mlx-vlm's packages for their `model_type`s. `new` is GTE in its publisher's files."""

PACKAGES: Final = RELATIVES | {
    "bert": "bert",
    "camembert": "xlm_roberta",
    "lfm2": "lfm2_embedding",
    "modernbert": "modernbert",
    "roberta": "xlm_roberta",
    "xlm-roberta": "xlm_roberta",
}
"""The same for all encoders. The RoBERTas differ in their tokenizers alone."""

ROTARY: Final = ("gte", "new", "nomic_bert")

FUSED: Final = {
    "Wqkv": ("q_proj", "k_proj", "v_proj"),
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "up_gate_proj": ("up_proj", "gate_proj"),
}
"""Matrices that are stored as one, by its name."""

RENAMED: Final = {
    r"^(distilbert|electra|gte|mpnet|new|nomic_bert|bert)\.": "",
    r"^(transformer\.layer|encoder\.layers|layers)\.": "encoder.layer.",
    r"^emb_ln\.": "embeddings.LayerNorm.",
    r"\b(attention|attn|self_attn)\.(attn\.)?q(_lin|_proj)?\.": "attention.self.query.",
    r"\b(attention|attn|self_attn)\.(attn\.)?k(_lin|_proj)?\.": "attention.self.key.",
    r"\b(attention|attn|self_attn)\.(attn\.)?v(_lin|_proj)?\.": "attention.self.value.",
    r"\b(attention|attn|self_attn)\.(attn\.o|out_lin|o_proj|out_proj)\.": "attention.output.dense.",
    r"\b(sa_layer_norm|attention\.LayerNorm|norm1|attn_ln|post_attention_layernorm)\.": "attention.output.LayerNorm.",
    r"\b(output_layer_norm|norm2|mlp_ln|post_mlp_layernorm)\.": "output.LayerNorm.",
    r"\b(ffn\.lin1|mlp\.fc11|mlp\.up_proj)\.": "intermediate.dense.",
    r"\bmlp\.(fc12|gate_proj)\.": "intermediate.gate.",
    r"\b(ffn\.lin2|mlp\.fc2|mlp\.down_proj)\.": "output.dense.",
}
"""Parts of the names of arrays, and what the relative calls them."""

OF_HEADS: Final = {
    r"^(pre_classifier|classifier\.dense)\.": "pooler.dense.",
    r"^classifier\.out_proj\.": "classifier.",
}
"""The same for DistilBERT's and ELECTRA's classifiers."""

OF_TRAINING: Final = ("discriminator_", "generator_", "lm_head.", "vocab_")
"""How the names begin of arrays that only training needs."""

NOMIC: Final = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
"""Fields of the files that Nomic publishes, and what transformers calls them."""

GATES: Final = {"geglu": "gelu", "swiglu": "silu"}
"""The activations of gated layers by Nomic's names."""

ONLY: Final = {
    "causal": False,
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "moe_every_n_layers": 0,
    "num_experts": 0,
    "parallel_block": False,
    "position_embedding_type": "rope",
    "prenorm": False,
    "rotary_emb_fraction": 1,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "use_rms_norm": False,
}
"""Fields of the publishers' code for encoders with rotary positions, and the value of each that is computed here."""

BUCKETS, FARTHEST = 32, 128
"""MPNet's classes of distances, half of them for either side, and the distance from which all are alike. transformers
has these numbers whatever `relative_attention_num_buckets` says, which is the number of rows that are stored."""


def as_transformers_has_it(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with transformers' fields, where Nomic published it with those of its own code. Raises
    `ValueError` for what is not computed here."""
    if config["model_type"] in ROTARY:
        for name, value in ONLY.items():
            if (told := config.get(name, value)) != value and not (told is None and not value):
                raise unread(f"{name} {told!r}")
    if "n_embd" not in config:
        return dict(config)
    # The fields' values in Nomic's code, which published files may leave out.
    config = {"rotary_emb_fraction": 0, "rotary_emb_base": 10000, "activation_function": "gelu", **config}
    gate, turned = config["activation_function"], config["rotary_emb_fraction"]
    if gate not in GATES or turned != 1:
        raise unread(f"activation_function {gate!r} with rotary_emb_fraction {turned!r}")
    biases = {name: config.get(name, True) for name in ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")}
    named = {other: config[name] for name, other in NOMIC.items() if name in config}
    return {**config, **biases, **named, "hidden_act": GATES[gate]}


def spelled_as_relative(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the fields of the relative. Raises `ValueError` for sizes that are no numbers."""
    found = {"layer_norm_eps": 1e-12, **config}
    for name in NOMIC.values() if config["model_type"] in ROTARY else ():
        if not isinstance(size := found.get(name), int | float) or size <= 0:
            raise ValueError(f"its config.json has {name} {size!r}")
    match config["model_type"]:
        case "mpnet":  # has no types of tokens; its class counts positions from 1, whatever the file says
            return found | {"type_vocab_size": 1, "pad_token_id": 1}
        case "distilbert":
            sizes = {"type_vocab_size": 1, "intermediate_size": config["hidden_dim"]}
            return found | sizes | {"hidden_act": config.get("activation")}
        case "nomic_bert":
            biases = dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), False)
            return {"hidden_act": "silu", **biases, **found}
        case "gte" | "new":
            biases = {"qkv_proj_bias": True, "mlp_fc1_bias": False, "mlp_fc2_bias": True}
            return {**found, **biases, "type_vocab_size": config.get("type_vocab_size") or 1}
    return found


def renamed(
    arrays: Mapping[str, mx.array], config: Mapping[str, Any], *, classifies: bool
) -> dict[str, mx.array]:
    """The arrays under the relative's names, with a type of tokens that adds nothing where the model has none."""
    names = RENAMED | (OF_HEADS if classifies and config["model_type"] in ("distilbert", "electra") else {})
    norm = "embeddings.LayerNorm."
    if projects(config):
        # Behind the norm, which is the last that BERT's class applies.
        names |= {rf"^{norm}": f"{norm}layers.0.", r"^embeddings_project\.": f"{norm}layers.1."}
        norm += "layers.0."
    found = {}
    for name, array in _parted(arrays).items():
        for part, other in names.items():
            name = re.sub(part, other, name)
        if not name.startswith(OF_TRAINING):
            found[name] = array
    if (weight := found.get(f"{norm}weight")) is None:
        raise ValueError(f"its files have no {norm}weight, but {', '.join([*arrays][:2])} and others")
    none = mx.zeros((1, *weight.shape), weight.dtype)
    return {"embeddings.token_type_embeddings.weight": none, **found}


def _parted(arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """The arrays, with each matrix by itself that is stored with others."""
    found = dict(arrays)
    for name in arrays:
        for fused in set(name.split(".")) & FUSED.keys():
            parts = FUSED[fused]
            pieces = mx.split(found.pop(name), len(parts))
            found |= {name.replace(fused, part): each for part, each in zip(parts, pieces, strict=True)}
    return found


def projects(config: Mapping[str, Any]) -> bool:
    """Whether the embeddings are narrower than the states, which a matrix makes of them."""
    return config["model_type"] == "electra" and bool(config["embedding_size"] != config["hidden_size"])


def complete(model: nn.Module, config: Mapping[str, Any], package: Any, *, classifies: bool) -> None:
    """Give a relative's model what it lacks; `package` is mlx-vlm's. Raises `ValueError` for settings that are not
    computed here."""
    kind = config["model_type"]
    if kind == "mpnet":
        add_distances(model, config)
    if kind in ROTARY:
        _turn(model, config)
    if projects(config):
        narrow = package.ModelConfig.from_dict({**config, "hidden_size": config["embedding_size"]})
        model.embeddings = type(model.embeddings)(narrow)
        project = nn.Linear(config["embedding_size"], config["hidden_size"])
        model.embeddings.LayerNorm = nn.Sequential(model.embeddings.LayerNorm, project)
    if classifies and kind in ("distilbert", "electra"):
        model.pooler = FirstToken(config["hidden_size"], nn.relu if kind == "distilbert" else nn.gelu)


class FirstToken(nn.Module):  # type: ignore[misc] # mlx has no types
    """What a classifier's matrix reads: the first token's state behind a layer, [batch, hidden]."""

    def __init__(self, size: int, activation: Callable[[mx.array], mx.array]) -> None:
        super().__init__()
        self.dense, self._activation = nn.Linear(size, size), activation

    def __call__(self, states: mx.array) -> mx.array:
        return self._activation(self.dense(states[:, 0]))


class TurnedAttention(nn.Module):  # type: ignore[misc] # mlx has no types
    """BERT's attention with rotary positions; states [batch, length, hidden]."""

    def __init__(self, config: Mapping[str, Any], rope: nn.RoPE) -> None:
        super().__init__()
        self.rope, self._heads = rope, config["num_attention_heads"]
        wide, biased = self._heads * rope.dims, config["qkv_proj_bias"]
        self.query, self.key, self.value = (nn.Linear(config["hidden_size"], wide, biased) for _ in range(3))

    def __call__(self, states: mx.array, mask: mx.array | None = None) -> mx.array:
        query, key, value = (
            part(states).reshape(*states.shape[:2], self._heads, -1).swapaxes(1, 2)
            for part in (self.query, self.key, self.value)
        )
        found = mx.fast.scaled_dot_product_attention(
            self.rope(query), self.rope(key), value, scale=self.rope.dims**-0.5, mask=mask
        )
        joined: mx.array = found.swapaxes(1, 2).flatten(2)
        return joined


class Gated(nn.Module):  # type: ignore[misc] # mlx has no types
    """BERT's wide layer with a gate, [batch, length, intermediate]."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        sizes = config["hidden_size"], config["intermediate_size"], config["mlp_fc1_bias"]
        self.dense, self.gate, self.intermediate_act_fn = nn.Linear(*sizes), nn.Linear(*sizes), nn.GELU()

    def __call__(self, states: mx.array) -> mx.array:
        gated: mx.array = self.intermediate_act_fn(self.gate(states)) * self.dense(states)
        return gated


def _turn(model: nn.Module, config: Mapping[str, Any]) -> None:
    """Give BERT's layers rotary positions and gates. Raises `ValueError` for positions that are scaled in other ways
    than evenly or by GTE's `ntk` (its publisher's `NTKScalingRotaryEmbedding`), the same for all lengths."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    dims, base, scale = config.get("head_dim") or hidden // heads, config["rope_theta"], 1.0
    table = rotary_tables(config).get("full_attention", {})
    kind, factor = table.get("rope_type", "default"), table.get("factor", 1.0)
    if kind == "ntk" and config["model_type"] != "nomic_bert" and table.get("mixed_b") is None:
        base, scale = base * factor, factor ** (-2 / dims)
    elif kind == "linear":
        scale = 1 / factor
    elif kind != "default":
        raise unread(f"rope_type {kind!r}")
    model.embeddings.position_embeddings = lambda _: 0.0
    for layer in model.layers:
        layer.attention.self = TurnedAttention(config, nn.RoPE(dims, base=base, scale=scale))
        layer.attention.output.dense = nn.Linear(heads * dims, hidden, config["qkv_proj_bias"])
        layer.intermediate = Gated(config)
        layer.output.dense = nn.Linear(config["intermediate_size"], hidden, config["mlp_fc2_bias"])


def add_distances(model: nn.Module, config: Mapping[str, Any]) -> None:
    """Let an encoder add to attention what MPNet has learnt of distances. Raises `ValueError` where it has too few
    classes of them."""
    buckets = config.get("relative_attention_num_buckets", BUCKETS)
    if buckets < BUCKETS:
        raise ValueError(f"its relative_attention_num_buckets is {buckets}, and MPNet has {BUCKETS}")
    table = nn.Embedding(buckets, config["num_attention_heads"])
    model.encoder.relative_attention_bias = table

    def encode(ids: mx.array, attention_mask: mx.array, _: Any = None) -> tuple[mx.array, mx.array]:
        states, bias = model.embeddings(ids), table(buckets_of(ids.shape[1])).transpose(2, 0, 1)
        mask = mx.where(attention_mask[:, None, None] > 0, bias[None], mx.finfo(states.dtype).min)
        return model.encoder(states, mask.astype(states.dtype)), attention_mask

    model._encode = encode


def buckets_of(length: int) -> mx.array:
    """The classes of the distances between tokens [length, length], as T5 and MPNet have them."""
    away = np.arange(length)[None] - np.arange(length)[:, None]
    half, near = BUCKETS // 2, BUCKETS // 4
    far = np.log(np.maximum(np.abs(away), 1).astype(np.float32) / near) / np.log(FARTHEST / near)
    far = np.minimum(near + (far * (half - near)).astype(np.int32), half - 1)
    return mx.array(half * (away > 0) + np.where(np.abs(away) < near, np.abs(away), far))

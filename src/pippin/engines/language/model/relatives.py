"""Encoders that mlx-vlm computes as a relative: DistilBERT as BERT, whose arrays have other names; and MPNet as
RoBERTa, with what the distances of tokens add to attention (transformers' `MPNetEncoder`)."""

from collections.abc import Mapping
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
import numpy as np

RENAMED: Final = {
    "distilbert.": "",
    "mpnet.": "",
    "transformer.layer.": "encoder.layer.",
    "attention.q_lin.": "attention.self.query.",
    "attention.k_lin.": "attention.self.key.",
    "attention.v_lin.": "attention.self.value.",
    "attention.out_lin.": "attention.output.dense.",
    "sa_layer_norm.": "attention.output.LayerNorm.",
    "ffn.lin1.": "intermediate.dense.",
    "ffn.lin2.": "output.dense.",
    "output_layer_norm.": "output.LayerNorm.",
    "attention.attn.q.": "attention.self.query.",
    "attention.attn.k.": "attention.self.key.",
    "attention.attn.v.": "attention.self.value.",
    "attention.attn.o.": "attention.output.dense.",
    "attention.LayerNorm.": "attention.output.LayerNorm.",
}
"""Parts of the names of arrays, and what the relative calls them."""

BUCKETS, FARTHEST = 32, 128
"""MPNet's classes of distances, half of them for either side, and the distance from which all are alike. transformers
has these numbers whatever `relative_attention_num_buckets` says, which is the number of rows that are stored."""


def spelled_as_relative(config: dict[str, Any], *, classifies: bool) -> dict[str, Any]:
    """The configuration with the fields of the relative. Neither model has types of tokens. Raises `ValueError` for a
    DistilBERT that `classifies`, whose head BERT does not have."""
    found = {"layer_norm_eps": 1e-12, **config, "type_vocab_size": 1}
    if config["model_type"] == "mpnet":
        return found | {"pad_token_id": 1}  # from which its class counts positions, whatever the file says
    if classifies:
        raise ValueError("the head for scores of distilbert is not known")
    return found | {"intermediate_size": config["hidden_dim"], "hidden_act": config.get("activation")}


def renamed(arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """The arrays under the relative's names, with a type of tokens that adds nothing."""
    found = {}
    for name, array in arrays.items():
        for part, other in RENAMED.items():
            name = name.replace(part, other)
        if not name.startswith("vocab_"):  # DistilBERT's head for training
            found[name] = array
    norm = found["embeddings.LayerNorm.weight"]
    return found | {"embeddings.token_type_embeddings.weight": mx.zeros((1, *norm.shape), norm.dtype)}


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

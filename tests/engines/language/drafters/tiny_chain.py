"""Tiny random checkpoints of Inkling with its blocks for multi-token prediction, which lie in a file of their own as in
the published ones; and what the blocks say, by their formula over a whole sequence."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_vlm.speculative.drafters import load_drafter
from mlx_vlm.speculative.drafters.inkling_mtp import Model, ModelConfig

from tests.engines.language.tiny_heads import spread
from tests.engines.language.vision.any_family import write
from tests.engines.language.vision.family_settings import FAMILIES

TEXT: dict[str, Any] = {
    "num_hidden_layers": 3,
    "local_layer_ids": [0, 2],
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "num_key_value_heads": 2,
    "sliding_window_size": 16,
    "rel_extent": 20,
    "log_scaling_n_floor": 2,
    "log_scaling_alpha": 3.0,
    "dense_intermediate_size": 96,
    "num_experts_per_tok": 2,
    "logits_mup_width_multiplier": 4.0,
}
BLOCKS = 3
LOCAL = [0, 2]  # blocks whose attention is sliding
PUBLISHED = {
    "self_attn.q_norm.weight": "attn.q_norm.weight",
    "self_attn.k_norm.weight": "attn.k_norm.weight",
    "self_attn.o_proj.weight": "attn.wo_ud.weight",
    "self_attn.k_sconv.conv.weight": "attn.k_sconv.weight",
    "self_attn.v_sconv.conv.weight": "attn.v_sconv.weight",
    "self_attn.rel_proj": "attn.rel_logits_proj.proj",
    "attn_sconv.conv.weight": "attn_sconv.weight",
    "mlp_sconv.conv.weight": "mlp_sconv.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "mlp_norm.weight",
    "mlp.down_proj.weight": "mlp.w2_md.weight",
    "mlp.global_scale": "mlp.global_scale",
}
"""The publisher's names of what is in a layer, by mlx-vlm's, but for what is put together there."""


def inkling_with_chain(folder: Path, *, blocks: int = BLOCKS, predictable: bool = False) -> Path:
    """A folder whose model has so many blocks. `predictable`: attention and networks add next to nothing to the
    embeddings of the model and its blocks, so that all say the same after the same token."""
    made = FAMILIES["inkling"]
    own: Any = {"num_nextn_predict_layers": blocks, "local_layer_ids": LOCAL, "chain_hidden_post_norm": False}
    write("inkling", replace(made, config={**made.config, "text_config": TEXT, "mtp_config": own}), folder)
    text = json.loads((folder / "config.json").read_text())["text_config"]
    text |= {"num_mtp_layers": blocks, "mtp_local_layer_ids": LOCAL}
    head = Model(ModelConfig.from_dict({"text_config": text}))
    trunk: dict[str, mx.array] = dict(mx.load(str(folder / "model.safetensors")))
    drafter = spread(head, 5)
    mx.random.seed(11)
    for weights in (trunk, drafter):
        for name, array in weights.items():
            if "norm" in name:
                weights[name] = array + 0.2 * mx.random.normal(array.shape)
    if predictable:
        _make_predictable(trunk, drafter)
    published = {"model.llm.norm.weight": trunk["language_model.model.norm.weight"]}
    for place, block in enumerate(head.blocks):
        ours, theirs = f"blocks.{place}.", f"model.mtp.layers.{place}."
        weights = {name.removeprefix(ours): each for name, each in drafter.items() if name.startswith(ours)}
        sizes = block.transformer_block.self_attn.qkvr_dims
        published |= {theirs + name: array for name, array in _published(weights, sizes).items()}
    mx.eval(trunk, published)
    mx.save_safetensors(str(folder / "model.safetensors"), trunk, {"format": "mlx"})
    mx.save_safetensors(str(folder / "mtp.safetensors"), published, {"format": "pt"})
    return folder


def _make_predictable(trunk: dict[str, mx.array], drafter: dict[str, mx.array]) -> None:
    for weights in (trunk, drafter):
        for name, array in weights.items():
            if "o_proj" in name or "down_proj" in name:
                weights[name] = array * 0.001
    norm = trunk["language_model.model.norm.weight"]
    for name in drafter:
        if name.endswith("embed_norm.weight"):
            drafter[name] = norm  # what a block says goes to the projection as it is
        if name.endswith("input_proj.weight"):
            drafter[name] = mx.concatenate([mx.zeros((norm.size, norm.size)), mx.eye(norm.size)], axis=1)


def _published(block: dict[str, mx.array], sizes: tuple[int, ...]) -> dict[str, mx.array]:
    """A block's weights under the publisher's names. `sizes` are of queries, keys, values and relative features."""
    layer, found = "transformer_block.", dict[str, mx.array]()
    for name, array in block.items():
        theirs = PUBLISHED.get(name.removeprefix(layer))
        if not name.startswith(layer):
            found[name] = array
        elif theirs is not None:
            found[layer + theirs] = array.transpose(0, 2, 1) if "conv" in name else array
    ends = [sum(sizes[: place + 1]) for place in range(3)]
    parts = mx.split(block[f"{layer}self_attn.qkvr_proj.weight"], ends)
    for part, array in zip(("wq_du", "wk_dv", "wv_dv", "wr_du"), parts, strict=True):
        found[f"{layer}attn.{part}.weight"] = array
    gate, up = (block[f"{layer}mlp.{part}_proj.weight"] for part in ("gate", "up"))
    found[f"{layer}mlp.w13_dn.weight"] = mx.stack([gate, up], axis=1).flatten(0, 1)
    return found


class Oracle:
    """What a checkpoint's blocks say, each over a whole sequence, without a cache, in mlx-vlm's own layers. Block k
    takes the states of block k - 1 and the tokens from k + 1 on, drafts among them. Behind the last block's token that
    block takes its own last state and the token, beside all that it had."""

    def __init__(self, split_off: Path, model: Any) -> None:
        """`model`: mlx-vlm's, whose embeddings and projection they share."""
        found, _ = load_drafter(str(split_off))
        self._blocks, self._language = found.blocks, model.language_model
        self._scale = found._mup

    def draft(self, tokens: list[int], states: mx.array, count: int) -> list[int]:
        """The likeliest `count` tokens after these, of which the model has given `states` [tokens - 1, size] to its
        projection."""
        own, found, stream = states[None] * self._scale, list[int](), list[int]()
        given = own
        for place in range(count):
            if place < len(self._blocks):
                stream = [*tokens, *found][place + 1 :]
            else:
                stream, own = [*stream, found[-1]], mx.concatenate([given, own[:, -1:]], axis=1)
            given, own = own, self._pass(self._blocks[min(place, len(self._blocks) - 1)], own, stream)
            found.append(int(mx.argmax(self._language._logits_from_norm(own[:, -1]))))
        return found

    def _pass(self, block: Any, states: mx.array, tokens: list[int]) -> mx.array:
        embedded = self._language.model.embed(mx.array([tokens]))
        joined = mx.concatenate([block.hidden_norm(states), block.embed_norm(embedded)], axis=-1)
        found: mx.array = block.transformer_block(block.input_proj(joined))
        return found

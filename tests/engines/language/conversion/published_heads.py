"""Tiny random checkpoints whose prediction heads are stored as their publishers store them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_vlm.speculative.drafters.qwen3_5_mtp import Model as QwenHead
from mlx_vlm.speculative.drafters.qwen3_5_mtp import ModelConfig as QwenHeadConfig

from tests.engines.language.drafters.test_split_heads import (
    with_next_head,
    with_qwen_head,
    with_v4_head,
)
from tests.engines.language.drafters.tiny_layers import checkpoint
from tests.engines.language.tiny_heads import QWEN, _written, nemotron_with_head, qwen_with_head, spread
from tests.engines.language.vision.tiny_vision_models import tiny_vision_model
from tests.engines.tiny_models import tiny_model

Weights = dict[str, mx.array]
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}


def published(name: str, folder: Path) -> Path:
    """A checkpoint of one of the `PUBLISHED` or of `drafters/layers.py`."""
    made = PUBLISHED.get(name)
    return checkpoint(name, folder)[0] if made is None else made(folder)


def _separate(folder: Path, head: Weights, trunk: Weights) -> Path:
    mx.eval(head, trunk)
    mx.save_safetensors(str(folder / "model.safetensors"), trunk, {"format": "mlx"})
    mx.save_safetensors(str(folder / "head.safetensors"), head, {"format": "pt"})
    return folder


def _parts(folder: Path, prefix: str = "mtp.") -> tuple[Weights, Weights]:
    """The head's weights, without the prefix, and the others."""
    weights = mx.load(str(folder / "model.safetensors"))
    head = {name.removeprefix(prefix): weights.pop(name) for name in list(weights) if name.startswith(prefix)}
    return head, weights


def _apart(head: Weights, names: dict[str, str]) -> Weights:
    """With an array for each expert, under the publisher's names of the projections."""
    found: Weights = {}
    for name, array in head.items():
        before, made, projection = name.partition("switch_mlp.")
        if not made:
            found[name] = array
            continue
        for expert, own in enumerate(array):
            found[f"{before}experts.{expert}.{names[projection.split('.')[0]]}.weight"] = own
    return found


def _fused(head: Weights) -> Weights:
    """With one array for all experts, gates and up projections in one."""
    found = {name: array for name, array in head.items() if "switch_mlp" not in name}
    for name, array in head.items():
        if name.endswith("switch_mlp.gate_proj.weight"):
            stem = name.removesuffix("switch_mlp.gate_proj.weight")
            up = head[f"{stem}switch_mlp.up_proj.weight"]
            found[f"{stem}experts.gate_up_proj"] = mx.concatenate([array, up], axis=-2)
            found[f"{stem}experts.down_proj"] = head[f"{stem}switch_mlp.down_proj.weight"]
    return found


SAME = {"gate_proj": "gate_proj", "up_proj": "up_proj", "down_proj": "down_proj"}


def _norms_less_one(head: Weights) -> Weights:
    """Norms far from one, as trained ones are, stored less one."""
    mx.random.seed(13)
    return {
        name: 0.5 * mx.random.normal(array.shape) if "norm" in name else array for name, array in head.items()
    }


def qwen(folder: Path) -> Path:
    head, trunk = _parts(qwen_with_head(folder))
    return _separate(folder, {f"mtp.{name}": each for name, each in _norms_less_one(head).items()}, trunk)


def qwen_of_experts(folder: Path) -> Path:
    import mlx_lm.models.qwen3_5_moe as qwen

    text = {**QWEN, **EXPERTS, "model_type": "qwen3_5_moe_text"}
    config = {"model_type": "qwen3_5_moe", "text_config": text}
    tiny_model("llama", folder)  # for its tokenizer
    trunk = spread(qwen.Model(qwen.ModelArgs.from_dict(config)), 7)
    head = _fused(spread(QwenHead(QwenHeadConfig.from_dict({"text_config": text})), 5))
    _written(folder, {}, config)
    return _separate(folder, {f"mtp.{name}": each for name, each in _norms_less_one(head).items()}, trunk)


def qwen_with_eyes(folder: Path) -> Path:
    tiny_vision_model("qwen3_5", folder)
    text = json.loads((folder / "config.json").read_text())["text_config"]
    head = spread(QwenHead(QwenHeadConfig.from_dict({"text_config": text})), 5)
    trunk = dict(mx.load(str(folder / "model.safetensors")))
    return _separate(folder, {f"mtp.{name}": each for name, each in _norms_less_one(head).items()}, trunk)


def qwen_next(folder: Path) -> Path:
    from mlx_vlm.speculative.drafters.qwen3_5_mtp.split import Qwen3NextMTPSplitter

    tiny_model("qwen3_next", folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"mtp_num_hidden_layers": 1, "head_dim": 16}
    (folder / "config.json").write_text(json.dumps(config))
    text = Qwen3NextMTPSplitter().read_text_config(config)
    head = _apart(spread(QwenHead(QwenHeadConfig.from_dict({"text_config": text})), 5), SAME)
    trunk = dict(mx.load(str(folder / "model.safetensors")))
    return _separate(folder, {f"mtp.{name}": each for name, each in _norms_less_one(head).items()}, trunk)


def nemotron(folder: Path) -> Path:
    head, trunk = _parts(nemotron_with_head(folder))
    head = _apart(head, {"fc1": "up_proj", "fc2": "down_proj"})
    return _separate(folder, {f"mtp.{name}": each for name, each in head.items()}, trunk)


def deepseek_v4(folder: Path) -> Path:
    return _of_deepseek(with_v4_head(folder)[0])


def _of_deepseek(folder: Path) -> Path:
    head, trunk = _parts(folder)
    projections = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
    found: Weights = {}
    for name, array in _apart(head, projections).items():
        name = name.replace(".decoder.", ".").replace(".hc_head.", ".hc_head_")
        name = re.sub(r"\.(attn|ffn)_hc\.(\w+)$", r".hc_\1_\2", name)
        name = name.replace("gate.e_score_correction_bias", "gate.bias")
        for ours, theirs in projections.items():
            name = name.replace(f"shared_experts.{ours}", f"shared_experts.{theirs}")
        found[f"mtp.{name}"] = array.flatten(0, 1) if "wo_a" in name else array
    return _separate(folder, found, trunk)


def _latent(head: Weights, stem: str) -> None:
    """Puts what makes keys and values of latent vectors into one matrix."""
    keys = head.pop(f"{stem}embed_q.weight").swapaxes(-1, -2)
    both = mx.concatenate([keys, head.pop(f"{stem}unembed_out.weight")], axis=1)
    head[f"{stem}kv_b_proj.weight"] = both.flatten(0, 1)


def glm_next(folder: Path) -> Path:
    _, options = with_next_head(folder)
    head, _ = _parts(Path(options["draft_model_path"]), "mtp_block.")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["num_nextn_predict_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    head |= {
        name: array
        for name, array in mx.load(str(folder / "head" / "model.safetensors")).items()
        if not name.startswith("mtp_block.")
    }
    head = _apart(head, SAME)
    _latent(head, "self_attn.")
    joined = head.pop("self_attn.qkv_a_proj.weight")
    rank = config["text_config"]["q_lora_rank"]
    head |= {"self_attn.q_a_proj.weight": joined[:rank], "self_attn.kv_a_proj_with_mqa.weight": joined[rank:]}
    gate, up = mx.split(head.pop("mlp.shared_experts.gate_up_proj.weight"), 2)
    head |= {"mlp.shared_experts.gate_proj.weight": gate, "mlp.shared_experts.up_proj.weight": up}
    head["shared_head.norm.weight"] = head.pop("shared_head_norm.weight")
    behind = f"model.language_model.layers.{config['text_config']['num_hidden_layers']}."
    trunk = dict(mx.load(str(folder / "model.safetensors")))
    return _separate(folder, {f"{behind}{name}": each for name, each in head.items()}, trunk)


def qwen4(folder: Path) -> Path:
    head, trunk = _parts(with_qwen_head(folder)[0])
    return _separate(folder, {f"mtp.{name}": each for name, each in _fused(head).items()}, trunk)


PUBLISHED: dict[str, Callable[[Path], Path]] = {
    "qwen3_5": qwen,
    "qwen3_5_moe": qwen_of_experts,
    "qwen3_5, vision": qwen_with_eyes,
    "qwen3_next": qwen_next,
    "nemotron_h": nemotron,
    "deepseek_v4": deepseek_v4,
    "glm5_next": glm_next,
    "qwen4_exp": qwen4,
}

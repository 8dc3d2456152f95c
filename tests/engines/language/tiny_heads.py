"""Tiny random draft heads in the real formats: a folder as EAGLE-3's are, and a checkpoint of Qwen 3.5 with `mtp.*`."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_vlm.speculative.drafters.eagle3 import Eagle3DraftModel
from mlx_vlm.speculative.drafters.eagle3 import ModelConfig as Eagle3Config
from mlx_vlm.speculative.drafters.gemma4_assistant import Model as AssistantModel
from mlx_vlm.speculative.drafters.gemma4_assistant import ModelConfig as AssistantConfig
from mlx_vlm.speculative.drafters.qwen3_5_mtp import Model as PredictionModel
from mlx_vlm.speculative.drafters.qwen3_5_mtp import ModelConfig as PredictionConfig
from mlx_vlm.speculative.drafters.qwen3_dflash.config import DFlashConfig
from mlx_vlm.speculative.drafters.qwen3_dflash.dflash import DFlashDraftModel

from tests.engines.tiny_models import COMMON, HEADS, LINEAR, VOCABULARY, tiny_model

LAYERS = (0, 1, 3)  # whose states the EAGLE-3 head reads, of a model of four
KNOWN = 200  # tokens that it knows

QWEN: dict[str, Any] = {
    **HEADS,
    **COMMON,
    **LINEAR,
    "num_hidden_layers": 4,
    "full_attention_interval": 2,
    "mtp_num_hidden_layers": 1,
    "rope_parameters": {
        "type": "default",
        "mrope_section": [2, 1, 1],
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    },
}


def spread(module: nn.Module, seed: int) -> dict[str, mx.array]:
    """Its weights, far enough apart that it says different things."""
    mx.random.seed(seed)
    weights = [
        (name, array if array.ndim < 2 else array + 0.08 * mx.random.normal(array.shape))
        for name, array in tree_flatten(module.parameters())
    ]
    module.update(tree_unflatten(weights))
    return dict(weights)


def eagle3_model(folder: Path, **changes: Any) -> Path:
    """A model that the head can be for."""
    return tiny_model("llama", folder, **{"num_hidden_layers": 4, **changes})


def eagle3_head(folder: Path, *, seed: int = 3, whole: dict[str, Any] | None = None, **changes: Any) -> Path:
    """As the library speculators writes it. `changes` are of its layer, `whole` of what is around that."""
    layer = {**HEADS, **COMMON, "model_type": "llama", "num_hidden_layers": 1}
    config = {
        "speculators_model_type": "eagle3",
        "model_type": "eagle3",
        "draft_vocab_size": KNOWN,
        "eagle_aux_hidden_state_layer_ids": [each + 1 for each in LAYERS],
        "transformer_layer_config": {**layer, **changes},
        **(whole or {}),
    }
    known = config["draft_vocab_size"]
    head = Eagle3DraftModel(Eagle3Config.from_dict(config))
    weights = spread(head, seed)
    if known < VOCABULARY:
        words = sorted(mx.random.permutation(VOCABULARY)[:known].tolist())
        weights["d2t"] = mx.array([word - index for index, word in enumerate(words)])
    return _written(folder, weights, config)


def dflash_head(folder: Path, *, seed: int = 3, layers: tuple[int, ...] = LAYERS, **changes: Any) -> Path:
    """A DFlash drafter for `eagle3_model`."""
    own: dict[str, Any] = {"mask_token_id": 301, "target_layer_ids": list(layers), "num_target_layers": 4}
    config = {**HEADS, **COMMON, "model_type": "qwen3", "num_hidden_layers": 2, "block_size": 6, **changes}
    config["dflash_config"] = own
    return _written(folder, spread(DFlashDraftModel(DFlashConfig.from_dict(config)), seed), config)


GEMMA: dict[str, Any] = {
    **HEADS,
    **COMMON,
    "num_hidden_layers": 5,
    "num_kv_shared_layers": 1,
    "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"],
    "sliding_window": 16,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 0,
    "use_double_wide_mlp": False,
    "final_logit_softcapping": 30.0,
}
ASSISTANT: dict[str, Any] = {
    "model_type": "gemma4_assistant",
    "backbone_hidden_size": 64,
    "text_config": {
        **GEMMA,
        "model_type": "gemma4_text",
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_kv_shared_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    },
}
ORDERED = {"use_ordered_embeddings": True, "num_centroids": 16, "centroid_intermediate_top_k": 4}


def gemma_model(folder: Path, changed: dict[str, mx.array] | None = None) -> tuple[Path, dict[str, mx.array]]:
    """A model of Gemma 4 that assistants can be for, and its weights."""
    import mlx_lm.models.gemma4_text as gemma

    tiny_model("llama", folder)  # for its tokenizer
    config = {**GEMMA, "model_type": "gemma4_text"}
    weights = spread(gemma.Model(gemma.ModelArgs.from_dict(config)), 7) | (changed or {})
    return _written(folder, weights, config), weights


def assistant_head(
    folder: Path, config: dict[str, Any] = ASSISTANT, changed: dict[str, mx.array] | None = None
) -> Path:
    """An assistant for `gemma_model`."""
    weights = spread(AssistantModel(AssistantConfig.from_dict(config)), 5) | (changed or {})
    if config.get("use_ordered_embeddings"):
        weights["masked_embedding.token_ordering"] = mx.random.permutation(COMMON["vocab_size"])
    return _written(folder, weights, config)


def qwen_with_head(folder: Path, **changes: Any) -> Path:
    """A checkpoint of Qwen 3.5 that has its prediction head."""
    text = {**QWEN, **changes, "model_type": "qwen3_5_text"}
    tiny_model_of_qwen(folder, text)
    head = PredictionModel(PredictionConfig.from_dict({"text_config": text}))
    weights = {f"mtp.{name}": array for name, array in spread(head, 5).items()}
    weights |= mx.load(str(folder / "model.safetensors"))
    return _written(folder, weights, {"model_type": "qwen3_5", "text_config": text})


NEMOTRON: dict[str, Any] = {
    **HEADS,
    **COMMON,
    "model_type": "nemotron_h",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "mamba_proj_bias": False,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "n_groups": 2,
    "mlp_bias": False,
    "layer_norm_epsilon": 1e-5,
    "use_bias": False,
    "use_conv_bias": True,
    "hybrid_override_pattern": "M*E-M",
    "num_hidden_layers": 5,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "n_group": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "num_nextn_predict_layers": 1,
    "mtp_hybrid_override_pattern": "*E",
}


def nemotron_with_head(folder: Path) -> Path:
    """A checkpoint of Nemotron-H, attention and recurrent layers and experts, that has its prediction head."""
    import mlx_lm.models.nemotron_h as nemotron
    from mlx_vlm.speculative.drafters.nemotron_h_mtp import Model, ModelConfig

    tiny_model("llama", folder)  # for its tokenizer
    weights = spread(nemotron.Model(nemotron.ModelArgs.from_dict(NEMOTRON)), 7)
    head = Model(ModelConfig.from_dict({"text_config": NEMOTRON}))
    weights |= {f"mtp.{name}": array for name, array in spread(head, 5).items()}
    return _written(folder, weights, NEMOTRON)


def with_prediction_head(folder: Path) -> Path:
    """A checkpoint of Qwen 3.5 with vision, to which its prediction head is added."""
    config = json.loads((folder / "config.json").read_text())
    head = PredictionModel(PredictionConfig.from_dict({"text_config": config["text_config"]}))
    weights = {f"mtp.{name}": array for name, array in spread(head, 5).items()}
    weights |= mx.load(str(folder / "model.safetensors"))
    return _written(folder, weights, config)


def prediction_head(folder: Path) -> Path:
    """A prediction head by itself, as mlx-vlm splits it off; random as it is, for a model of any architecture."""
    text = {**QWEN, "model_type": "qwen3_5_text"}
    head = PredictionModel(PredictionConfig.from_dict({"text_config": text}))
    return _written(folder, spread(head, 5), {"model_type": "qwen3_5_mtp", "text_config": text})


def tiny_model_of_qwen(folder: Path, text: dict[str, Any]) -> None:
    """The model itself, and its tokenizer."""
    import mlx_lm.models.qwen3_5 as qwen

    tiny_model("llama", folder)  # for its tokenizer
    model = qwen.Model(qwen.ModelArgs.from_dict({"model_type": "qwen3_5", "text_config": text}))
    _written(folder, spread(model, 7), {})


def _written(folder: Path, weights: dict[str, mx.array], config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder

"""Tiny random checkpoints of real architectures, in the real format, with a tokenizer of bytes."""

import importlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten, tree_unflatten
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.as_on_a_mac.mac import Mac, chosen_mac

VOCABULARY = 320
EOS = 256
HEADS = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
COMMON: dict[str, Any] = {
    "intermediate_size": 96,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "rope_theta": 10000.0,
    "eos_token_id": EOS,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "attention_bias": False,
    "rope_scaling": None,
}
INDEXED = {**LATENT, "index_topk": 9, "index_head_dim": 16, "index_n_heads": 2}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {**HEADS, **COMMON, "num_hidden_layers": 2},
    "qwen3": {**HEADS, **COMMON, "num_hidden_layers": 2},
    "qwen3_moe": {**HEADS, **COMMON, **EXPERTS, "num_hidden_layers": 2},
    "gemma3_text": {
        **HEADS,
        **COMMON,
        "num_hidden_layers": 4,
        "sliding_window": 24,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 16,
    },
    "gpt_oss": {
        **HEADS,
        **COMMON,
        "num_hidden_layers": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention"],
        # Its class in transformers scales positions where a file says nothing.
        "rope_scaling": {"rope_type": "default"},
    },
    "qwen3_next": {
        **HEADS,
        **COMMON,
        **EXPERTS,
        **LINEAR,
        "num_hidden_layers": 2,
        "full_attention_interval": 2,
        "shared_expert_intermediate_size": 32,
        "partial_rotary_factor": 0.5,
    },
    "qwen3_5": {
        **HEADS,
        **COMMON,
        "num_hidden_layers": 2,
        "full_attention_interval": 2,
        "linear_num_value_heads": 6,
        "linear_num_key_heads": 6,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
    },
    "mamba2": {
        **COMMON,
        "num_heads": 4,
        "head_dim": 32,
        "hidden_size": 64,
        "intermediate_size": 128,
        "state_size": 16,
        "num_hidden_layers": 2,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_limit": [0.0, 1000.0],
        "time_step_rank": 4,
    },
    "lfm2": {
        **HEADS,
        **COMMON,
        "num_hidden_layers": 3,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 64,
        "block_ff_dim": 96,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [1],
    },
    "deepseek_v32": {
        **HEADS,
        **COMMON,
        **INDEXED,
        "num_hidden_layers": 2,
        "first_k_dense_replace": 1,
    },
}

CACHED_AS_ANOTHER = {"qwen3", "qwen3_moe", "gpt_oss", "qwen3_5"}
"""Whose caches are those of Llama, Gemma 3 and Qwen3-Next."""
BY_CACHE = [
    pytest.param(name, marks=pytest.mark.long if name in CACHED_AS_ANOTHER else ()) for name in ARCHITECTURES
]
"""For what the layers' caches decide: one of each kind by day."""

OF_ANOTHERS_CLASS: dict[str, dict[str, Any]] = {
    "glm_moe_dsa": {
        **{name: value for name, value in ARCHITECTURES["deepseek_v32"].items() if name != "rope_scaling"},
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    },
}
"""Architectures whose models are of a class of the others."""
BAILING = {
    **{name: HEADS[name] for name in ("hidden_size", "num_attention_heads", "head_dim")},
    **COMMON,
    "num_key_value_heads": 2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
    "layer_group_size": 2,
    "group_norm_size": 4,
    "use_qk_norm": True,
}
LLAMA4 = {
    **HEADS,
    **COMMON,
    "model_type": "llama4_text",
    "num_hidden_layers": 4,
    "attention_bias": False,
    "attention_chunk_size": 20,
    "floor_scale": 7,  # tokens after which queries of layers that see all tokens are scaled anew
    "attn_scale": 0.5,
    "attn_temperature_tuning": 1,
    "interleave_moe_layer_step": 2,
    "intermediate_size_mlp": 96,
    "num_experts_per_tok": 1,
    "num_local_experts": 4,
    "rope_scaling": None,
    "use_qk_norm": True,
}
SOLO_ONES: dict[str, dict[str, Any]] = {
    "llama4": {"text_config": LLAMA4, "eos_token_id": EOS},
    "gpt_bigcode": {
        "n_embd": 64,
        "n_layer": 2,
        "n_inner": 96,
        "n_head": 4,
        "n_positions": 4096,
        "layer_norm_epsilon": 1e-5,
        "vocab_size": VOCABULARY,
        "eos_token_id": EOS,
    },
}
"""Architectures whose sequences run one at a time."""
ODD_ONES: dict[str, dict[str, Any]] = {
    "mamba": {
        **COMMON,
        "hidden_size": 64,
        "intermediate_size": 128,
        "state_size": 16,
        "num_hidden_layers": 2,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
    },
    "bailing_moe_linear": {**BAILING, "num_hidden_layers": 3},
    "bailing_hybrid": {
        **BAILING,
        "num_hidden_layers": 4,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "kv_lora_rank": 32,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
    },
    "gemma2": {**HEADS, **COMMON, "num_hidden_layers": 2, "query_pre_attn_scalar": 16},
    "longcat_flash_ngram": {
        **COMMON,
        "hidden_size": 64,
        "ffn_hidden_size": 96,
        "moe_topk": 2,
        "expert_ffn_hidden_size": 32,
        "n_routed_experts": 4,
        "zero_expert_num": 2,
        "num_layers": 2,
        "num_attention_heads": 4,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "routed_scaling_factor": 1.0,
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
        "ngram_vocab_size_ratio": 2,
    },
}
"""Architectures with the kinds of cache of others, whose own code asks for something that no other does: by day they
are tried in a few tests, and at night in schedules too."""


def tiny_model(
    architecture: str, folder: Path, *, seed: int = 7, mac: Mac | None = None, **changes: Any
) -> Path:
    """Write a random checkpoint of this architecture into `folder`: float32, or as `mac` has it, or the Mac that the
    tests run on."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": architecture,
        **{**ARCHITECTURES, **OF_ANOTHERS_CLASS, **ODD_ONES, **SOLO_ONES}[architecture],
        **changes,
    }
    module = importlib.import_module(f"mlx_lm.models.{architecture}")
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(config))
    spread = [
        # Wide enough that the random model answers differently to different contexts.
        (name, array if array.ndim < 2 else array + 0.08 * mx.random.normal(array.shape))
        for name, array in tree_flatten(model.parameters())
    ]
    model.update(tree_unflatten([(name, array.astype(mx.float32)) for name, array in spread]))
    mac = mac or chosen_mac()
    if mac is not None:
        config = mac.stored(model, config)
    mx.save_safetensors(
        str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"}
    )
    (folder / "config.json").write_text(json.dumps(config))
    write_byte_tokenizer(folder)
    return folder


def write_byte_tokenizer(folder: Path) -> None:
    """Token i is byte i; the first special token, which ends the text, is 256."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "chat_template": "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


class TinyModels:
    """Each model is made when it is first asked for, once for all tests of a session."""

    def __init__(self, root: Path, mac: Mac | None = None) -> None:
        self._root, self._mac = root, mac
        self._made: dict[str, Path] = {}

    def __call__(self, architecture: str, **changes: Any) -> Path:
        """The folder of `tiny_model(architecture, ..., **changes)`."""
        named = json.dumps([architecture, changes], sort_keys=True)
        if named not in self._made:
            folder = self._root / f"{len(self._made)}" / architecture
            self._made[named] = tiny_model(architecture, folder, mac=self._mac, **changes)
        return self._made[named]

    def all(self) -> dict[str, Path]:
        """One of each architecture, by its name."""
        return {name: self(name) for name in ARCHITECTURES}

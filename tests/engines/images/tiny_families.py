"""Tiny random checkpoints of families of image models beside Z-Image, in mlx-vlm's format."""

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from tests.engines.images.tiny_pipelines import Json, write_json, write_tokenizer

TOKENS = 258
QWEN_3_5: Json = {
    "model_type": "qwen3_5_text",
    "vocab_size": TOKENS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 1024,
    "rope_parameters": {
        "type": "default",
        "mrope_section": [1, 1, 0],
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.25,
    },
    "tie_word_embeddings": False,
}

MING_TEXT: Json = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_shared_experts": 1,
    "num_attention_heads": 2,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "vocab_size": TOKENS + 4,
    "n_group": 1,
    "topk_group": 1,
    "image_patch_token": TOKENS,
    "image_start_token": TOKENS + 1,
    "image_end_token": TOKENS + 2,
}


def save(folder: Path, module: nn.Module, config: Json) -> None:
    write_json(folder / "config.json", config)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(module.parameters())))


def tiny_moss_image(folder: Path) -> Path:
    from mlx_vlm.models.flux2.vae import Flux2VAE
    from mlx_vlm.models.moss_image.config import MOSSImageTransformerConfig
    from mlx_vlm.models.moss_image.transformer import MOSSImageTransformer
    from mlx_vlm.models.qwen3_5.config import TextConfig
    from mlx_vlm.models.qwen3_5.language import Qwen3_5Model

    mx.random.seed(3)
    native = {"mlx_vlm_format": "moss_image"}
    save(
        folder / "text_encoder",
        Qwen3_5Model(TextConfig.from_dict(QWEN_3_5)),
        {**native, "text_config": QWEN_3_5},
    )
    # The pipeline leaves out the layer 22 where it computes without the prompt.
    shape = {
        "dim": 32,
        "ffn_dim": 48,
        "num_heads": 2,
        "num_layers": 23,
        "text_dim": 32,
        "freq_dim": 16,
        "latent_channels": 128,
    }
    save(
        folder / "transformer",
        MOSSImageTransformer(MOSSImageTransformerConfig.from_dict(shape)),
        {**native, **shape},
    )
    channels = [32, 32, 32, 32]
    save(
        folder / "vae",
        Flux2VAE(decoder_block_out_channels=tuple(channels)),
        {**native, "decoder_block_out_channels": channels},
    )
    write_json(folder / "scheduler" / "scheduler_config.json", {"num_train_timesteps": 1000, "shift": 3.0})
    write_json(folder / "model_index.json", {"_class_name": "MOSSImagePipeline"})
    write_tokenizer(folder / "tokenizer")
    return folder


def tiny_ming_image(folder: Path) -> Path:
    from mlx_vlm.models.ming_image.config import MingImageConfig
    from mlx_vlm.models.ming_image.text_encoder import MingImageTextEncoder
    from mlx_vlm.models.ming_image.transformer import MingImageTransformer
    from mlx_vlm.models.ming_image.vae import build_vae

    native = {"mlx_format": True}
    parts: dict[str, Json] = {
        "mllm": {"architectures": ["BailingMMForCausalLM"], "llm_config": MING_TEXT},
        "connector": {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "intermediate_size": 32,
        },
        "mlp": {
            "img_gen_scales": [2],
            "diffusion_c_input_dim": 16,
            "diffusion_inner_dim": 32,
            "selected_hidden_states_layers": [0, 1, 2],
        },
        "transformer": {
            "_class_name": "DiffusionTransformer",
            "dim": 32,
            "n_heads": 2,
            "n_kv_heads": 2,
            "n_layers": 1,
            "n_refiner_layers": 1,
            "cap_feat_dim": 16,
            "axes_dims": [4, 6, 6],
            **native,
        },
        "vae": {"base_dim": 8, "num_res_blocks": 1, **native},
        "text_encoder": native,
    }
    for part, config in parts.items():
        write_json(folder / part / "config.json", config)
    write_json(folder / "scheduler" / "scheduler_config.json", {})
    write_json(folder / "model_index.json", {"_class_name": "MingImagePipeline"})
    write_tokenizer(folder / "mllm")
    settings = MingImageConfig.from_model_path(folder)
    mx.random.seed(3)
    encoder = MingImageTextEncoder(settings)
    encoder.query_tokens = mx.random.normal(encoder.query_tokens.shape)
    save(folder / "text_encoder", encoder, parts["text_encoder"])
    save(folder / "transformer", MingImageTransformer(settings.dit), parts["transformer"])
    save(folder / "vae", build_vae(settings.vae), parts["vae"])
    return folder

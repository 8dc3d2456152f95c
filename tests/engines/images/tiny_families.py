"""Tiny random checkpoints of families of image models beside Z-Image, in mlx-vlm's format."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from tests.engines.images.tiny_pipelines import Json, write_json, write_tokenizer
from tests.engines.language.vision.tiny_vision_models import tiny_vision_model

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


SMALL_CHANNELS: Final = (32, 32, 32, 32)
FLUX2_PARTS: Json = {
    "transformer_overrides": {
        "num_layers": 1,
        "num_single_layers": 1,
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "axes_dims_rope": (4, 4, 4, 4),
        "joint_attention_dim": 3 * 32,
    },
    "text_encoder_overrides": {
        "vocab_size": TOKENS,
        "hidden_size": 32,
        "intermediate_size": 48,
        # The pipeline reads what comes out of the layers 9, 18 and 27.
        "num_hidden_layers": 28,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
    },
}
FLUX2_VAE: Json = {
    "flux2.weights.FULL_DECODER_CHANNELS": SMALL_CHANNELS,
    # Convolutions in bfloat16 take a CPU seconds.
    "flux2.constants.ModelConfig.precision": mx.float32,
}
QWEN_IMAGE_TRANSFORMER: Json = {
    "num_layers": 2,
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "axes_dims_rope": (4, 6, 6),
    "in_channels": 16,
    "out_channels": 16,
    "context_in_dim": 64,
    "mlp_ratio": 2,
}
QWEN_IMAGE_VAE: Json = {
    "base_dim": 8,
    "decoder_base_dim": 8,
    "z_dim": 16,
    "dim_mult": [1, 1, 1, 1, 1],
    "num_res_blocks": 1,
    "temperal_downsample": [False, True, True, True],
    "in_channels": 4,
    "out_channels": 4,
}
ERNIE_TEXT: Json = {
    "vocab_size": TOKENS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
ERNIE_TRANSFORMER: Json = {
    "hidden_size": 32,
    "ffn_hidden_size": 48,
    "num_layers": 1,
    "num_attention_heads": 2,
    "rope_axes_dim": [4, 6, 6],
    "text_in_dim": 32,
}
IDEOGRAM_TEXT: Json = {
    "vocab_size": TOKENS,
    "hidden_size": 16,
    # The pipeline reads 13 of the 36 layers, the last of them the 36th.
    "num_hidden_layers": 36,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "head_dim": 8,
}
IDEOGRAM_TRANSFORMER: Json = {
    "emb_dim": 32,
    "num_layers": 1,
    "num_heads": 2,
    "intermediate_size": 48,
    "adaln_dim": 16,
    "in_channels": 128,
    "llm_features_dim": 16 * 13,
    "rope_theta": 10_000,
    "mrope_section": [3, 3, 2],
    "norm_eps": 1e-5,
}
LLADA_TEXT: Json = {
    "vocab_size": TOKENS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
}
LLADA_PARTS: dict[str, Json] = {
    "queryformer": {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_queries": 4,
    },
    "text_projection": {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "projection_dim": 24,
    },
    "sigvq": {
        "patch_size": 16,
        "image_size": 64,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "codebook_size": 20,
        "codebook_embed_dim": 8,
        "semantic_embed_dim": 24,
    },
    "transformer": {
        "dim": 32,
        "n_heads": 2,
        "n_layers": 1,
        "n_refiner_layers": 1,
        "cap_feat_dim": 24,
        "semantic_feat_dim": 24,
        "axes_dims": [4, 6, 6],
    },
}
FLUX3: Json = {
    "model": "flux-3-image-klein",
    "dit": {
        "hidden": 32,
        "heads": 2,
        "depth": 1,
        "depth_single": 1,
        "axes_dim": [4, 4, 4, 4],
        "in_channels": {"image": 128, "image_cond": 128, "text": 2 * 32},
        "flow_map": False,
    },
    "text_encoder": {"layers": [1, 2], "pad_multiple": 16, "max_tokens": 512},
    "sampler": {"steps": 5, "guidance": 3.5},
}
FLUX3_TEXT: Json = {
    "model_type": "qwen3_vl_text",
    "vocab_size": TOKENS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "head_dim": 16,
    "rope_theta": 1e4,
    "max_position_embeddings": 1024,
    "rope_scaling": {"type": "default", "mrope_section": [3, 3, 2]},
}


def save(folder: Path, module: nn.Module, config: Json, metadata: dict[str, str] | None = None) -> None:
    write_json(folder / "config.json", config)
    save_weights(folder, dict(tree_flatten(module.parameters())), metadata)


def save_weights(folder: Path, weights: dict[str, mx.array], metadata: dict[str, str] | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata or {})


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


def tiny_flux2(folder: Path) -> Path:
    from mlx_vlm.models.flux2.qwen.text_encoder import Qwen3TextEncoder
    from mlx_vlm.models.flux2.transformer import Flux2Transformer

    mx.random.seed(3)
    save(folder / "transformer", Flux2Transformer(**FLUX2_PARTS["transformer_overrides"]), {})
    save(folder / "text_encoder", Qwen3TextEncoder(**FLUX2_PARTS["text_encoder_overrides"]), {})
    save_flux2_vae(folder / "vae")
    write_json(folder / "model_index.json", {"_class_name": "Flux2KleinPipeline"})
    write_tokenizer(folder / "tokenizer")
    return folder


def save_flux2_vae(folder: Path) -> None:
    from mlx_vlm.models.flux2.vae import Flux2VAE

    vae = Flux2VAE(SMALL_CHANNELS, include_encoder=True, encoder_block_out_channels=SMALL_CHANNELS)
    save(folder, vae, {"_class_name": "AutoencoderKLFlux2"}, {"tensor_layout": "mlx_nhwc"})


def small_flux2(name: str) -> Json:
    """In place of a variant of FLUX.2, whose sizes stand in the table of its variants."""
    from mlx_vlm.models.flux2.config import VARIANTS

    return {"flux2.config.VARIANTS": {name: dataclasses.replace(VARIANTS[name], **FLUX2_PARTS)}, **FLUX2_VAE}


def tiny_qwen_image(folder: Path) -> Path:
    from mlx_vlm.models.qwen_image.transformer import QwenImageTransformer
    from mlx_vlm.models.qwen_image.vae import QwenImageVAE

    native = {"mlx_format": True}
    mx.random.seed(3)
    transformer = QwenImageTransformer(**QWEN_IMAGE_TRANSFORMER)
    transformer.set_dtype(mx.bfloat16)  # as the latents, which its cache compares with
    save(folder / "transformer", transformer, {"_class_name": "QwenImage21Transformer2DModel", **native})
    scale = {"latents_mean": [0.1] * 16, "latents_std": [0.9] * 16}
    save(folder / "vae", QwenImageVAE(**QWEN_IMAGE_VAE), {**QWEN_IMAGE_VAE, **scale, **native})
    save_qwen_text_encoder(folder / "text_encoder", native)
    weights = shutil.ignore_patterns("*.safetensors", "config.json")
    shutil.copytree(folder / "text_encoder", folder / "processor", ignore=weights)
    write_json(folder / "model_index.json", {"_class_name": "QwenImage21Pipeline"})
    return folder


def save_qwen_text_encoder(folder: Path, native: Json) -> None:
    """A Qwen3-VL whose patches are those of the real one: the pipeline counts on four tokens of its own in each of its
    slots."""
    from mlx_vlm.models.qwen3_vl.config import ModelConfig
    from mlx_vlm.models.qwen3_vl.qwen3_vl import Model

    tiny_vision_model("qwen3_vl", folder)
    config = json.loads((folder / "config.json").read_text()) | native
    config["vision_config"]["patch_size"] = 16
    save(folder, Model(ModelConfig.from_dict(json.loads(json.dumps(config)))), config)
    pixels = json.loads((folder / "preprocessor_config.json").read_text())
    pixels |= {"patch_size": 16, "min_pixels": 1024, "max_pixels": 1 << 20}
    write_json(folder / "preprocessor_config.json", pixels)


def small_qwen_image() -> Json:
    """In place of its variant, and of the million pixels that it makes of each given picture."""
    from mlx_vlm.models.qwen_image.config import VARIANTS
    from mlx_vlm.models.qwen_image.pipeline import _image_dimensions

    made = dataclasses.replace(VARIANTS["qwen-image-2.1"], transformer_overrides=QWEN_IMAGE_TRANSFORMER)
    return {
        "qwen_image.config.VARIANTS": {made.name: made},
        "qwen_image.pipeline._image_dimensions": lambda _, ratio: _image_dimensions(128, ratio),
    }


def tiny_ernie_image(folder: Path) -> Path:
    from mlx_vlm.models.ernie_image.config import ErnieImageTransformerConfig
    from mlx_vlm.models.ernie_image.text_encoder import ErnieImageTextConfig, ErnieImageTextEncoder
    from mlx_vlm.models.ernie_image.transformer import ErnieImageTransformer

    native = {"tensor_layout": "mlx_nhwc"}
    mx.random.seed(3)
    shape = ErnieImageTransformerConfig.from_dict(ERNIE_TRANSFORMER)
    save(folder / "transformer", ErnieImageTransformer(shape), ERNIE_TRANSFORMER, native)
    encoder = ErnieImageTextEncoder(ErnieImageTextConfig.from_dict(ERNIE_TEXT))
    save(folder / "text_encoder", encoder, ERNIE_TEXT, native)
    save_flux2_vae(folder / "vae")
    write_json(folder / "model_index.json", {"_class_name": "ErnieImagePipeline"})
    write_tokenizer(folder / "tokenizer")
    return folder


def tiny_mage_flow(folder: Path) -> Path:
    from mlx_vlm.models.mage_flow.transformer import MageFlowTransformer

    shape: Json = {"context_in_dim": 64, "hidden_size": 32, "num_heads": 2, "depth": 1, "axes_dim": (4, 6, 6)}
    mx.random.seed(3)
    save(folder / "transformer", MageFlowTransformer(**shape), shape)
    save(folder / "vae", small_mage_vae()(), {}, {"tensor_layout": "mlx_nhwc"})
    tiny_vision_model("qwen3_vl", folder / "text_encoder")
    write_json(folder / "model_index.json", {"_class_name": "MageFlowPipeline"})
    return folder


def small_mage_vae() -> Any:
    """Mage-Flow's decoder with one block for 21: it takes no sizes."""
    from mlx_vlm.models.mage_flow.vae import MageVAE

    def made(**options: Any) -> MageVAE:
        vae = MageVAE(**options)
        for part in (vae.dconv_encoder, vae.decoder_model):
            if part is not None:
                part.blocks = part.blocks[:1]
        return vae

    return made


def tiny_ideogram(folder: Path) -> Path:
    from mlx_vlm.models.flux2.qwen.text_encoder import Qwen3TextEncoder
    from mlx_vlm.models.ideogram4.config import Ideogram4TransformerConfig
    from mlx_vlm.models.ideogram4.transformer import Ideogram4Transformer

    mx.random.seed(3)
    shape = Ideogram4TransformerConfig.from_dict(IDEOGRAM_TRANSFORMER)
    for part in ("transformer", "unconditional_transformer"):
        save(folder / part, Ideogram4Transformer(shape), IDEOGRAM_TRANSFORMER)
    save(folder / "text_encoder", Qwen3TextEncoder(**IDEOGRAM_TEXT), {"text_config": IDEOGRAM_TEXT})
    save_flux2_vae(folder / "vae")
    write_json(folder / "model_index.json", {"_class_name": "Ideogram4Pipeline"})
    write_tokenizer(folder / "tokenizer")
    return folder


def tiny_llada_image(folder: Path) -> Path:
    from mlx_vlm.models.llada2_moe.config import ModelConfig
    from mlx_vlm.models.llada_image.conditioning import QueryFormer, TextProjection
    from mlx_vlm.models.llada_image.config import LLaDAImageTransformerConfig
    from mlx_vlm.models.llada_image.sigvq import SigVQ
    from mlx_vlm.models.llada_image.text_encoder import LLaDAImageTextEncoder
    from mlx_vlm.models.llada_image.transformer import LLaDAImageTransformer

    mx.random.seed(3)
    transformer = LLaDAImageTransformer(LLaDAImageTransformerConfig.from_dict(LLADA_PARTS["transformer"]))
    made: dict[str, nn.Module] = {
        "queryformer": QueryFormer(LLADA_PARTS["queryformer"]),
        "text_projection": TextProjection(LLADA_PARTS["text_projection"]),
        "transformer": transformer,
    }
    for part, module in made.items():
        save(folder / part, module, LLADA_PARTS[part])
    sigvq = SigVQ(LLADA_PARTS["sigvq"])
    weights = {
        # As they are stored: channels first.
        name: array.transpose(0, 3, 1, 2) if array.ndim == 4 else array
        for name, array in tree_flatten(sigvq.parameters())
    }
    write_json(folder / "sigvq" / "config.json", LLADA_PARTS["sigvq"])
    save_weights(folder / "sigvq", weights)
    save(folder / "text_encoder", LLaDAImageTextEncoder(ModelConfig.from_dict(LLADA_TEXT)), LLADA_TEXT)
    save_flux2_vae(folder / "vae")
    write_json(folder / "scheduler" / "scheduler_config.json", {})
    write_json(folder / "model_index.json", {"_class_name": "LLaDAImagePipeline"})
    write_tokenizer(folder / "tokenizer")
    return folder


def tiny_flux3(folder: Path) -> Path:
    from mlx_vlm.models.flux3.config import Flux3Config
    from mlx_vlm.models.flux3.text_encoder import Flux3TextEncoder
    from mlx_vlm.models.flux3.transformer import Flux3Transformer
    from mlx_vlm.models.qwen3_vl.config import TextConfig

    mx.random.seed(3)
    transformer = Flux3Transformer(Flux3Config.from_dict(FLUX3))
    save_weights(folder, dict(tree_flatten(transformer.parameters())))
    write_json(folder / "config.json", FLUX3)
    encoder = Flux3TextEncoder(TextConfig.from_dict(FLUX3_TEXT))
    weights = {f"model.language_model.{name}": array for name, array in tree_flatten(encoder.parameters())}
    save_weights(folder / "text_encoder", weights)
    write_json(folder / "text_encoder" / "config.json", {"text_config": FLUX3_TEXT})
    write_tokenizer(folder / "text_encoder")
    decoder = {
        name: array.transpose(0, 3, 1, 2) if array.ndim == 4 else array
        for name, array in tree_flatten(small_flux3_vae()().parameters())
    }
    mx.save_safetensors(str(folder / "ae.safetensors"), decoder)
    return folder


def small_flux3_vae() -> Any:
    """FLUX.3's decoder and encoder with 32 channels everywhere: they take no sizes."""
    from mlx_vlm.models.flux3 import vae

    class SmallVAE(vae.Flux3VAE):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            width = 32
            for part, count, sampling in ((self.encoder, 2, "down"), (self.decoder, 3, "up")):
                part.conv_in = nn.Conv2d(3 if sampling == "down" else 32, width, 3, padding=1)
                part.mid = vae.MidBlock(width)
                part.norm_out = vae.norm(width)
                part.conv_out = nn.Conv2d(width, 64 if sampling == "down" else 3, 3, padding=1)
                last = 3 if sampling == "down" else 0
                levels = [
                    vae.Level(width, width, count=count, sampling=None if place == last else sampling)
                    for place in range(4)
                ]
                setattr(part, sampling, levels)

    return SmallVAE

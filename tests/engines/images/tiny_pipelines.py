"""A tiny random checkpoint of Z-Image in mlx-vlm's format, with a tokenizer of bytes."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

Json = dict[str, Any]

TRANSFORMER: Json = {
    "dim": 32,
    "n_heads": 2,
    "n_kv_heads": 2,
    "cap_feat_dim": 16,
    "n_layers": 1,
    "n_refiner_layers": 1,
    "axes_dims": [4, 6, 6],
    "adaln_embed_dim": 16,
    "in_channels": 16,
    "all_patch_size": [2],
}
TEXT: Json = {
    "vocab_size": 258,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "head_dim": 8,
    "max_position_embeddings": 1024,
}
VAE: Json = {"latent_channels": 16, "block_out_channels": [32, 32, 32, 32], "layers_per_block": 1}


def tiny_z_image(folder: Path, *, turbo: bool = False, seed: int = 7) -> Path:
    from mlx_vlm.models.z_image.config import ZImageConfig
    from mlx_vlm.models.z_image.text_encoder import ZImageTextEncoder
    from mlx_vlm.models.z_image.transformer import ZImageTransformer
    from mlx_vlm.models.z_image.vae import ZImageVAE

    for part, config in (("transformer", TRANSFORMER), ("text_encoder", TEXT), ("vae", VAE)):
        write_json(folder / part / "config.json", config)
    write_json(folder / "scheduler" / "scheduler_config.json", {"shift": 3.0 if turbo else 6.0})
    write_json(folder / "model_index.json", {"_class_name": "ZImagePipeline"})
    settings = ZImageConfig.from_model_path(folder)
    mx.random.seed(seed)
    _save(folder / "transformer", ZImageTransformer(settings.transformer))
    _save(folder / "text_encoder", ZImageTextEncoder(settings.text_encoder))
    _save(folder / "vae", ZImageVAE(settings.vae), {"mlx_vlm_format": "z_image"})
    write_tokenizer(folder / "tokenizer")
    return folder


def write_json(path: Path, value: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def _save(folder: Path, module: nn.Module, metadata: Json | None = None) -> None:
    weights = dict(tree_flatten(module.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    index = {"metadata": metadata or {}, "weight_map": dict.fromkeys(weights, "model.safetensors")}
    write_json(folder / "model.safetensors.index.json", index)


def write_tokenizer(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "pad_token": "<|end|>",
        "chat_template": "{% for message in messages %}user: {{ message.content }}{% endfor %}",
    }
    write_json(folder / "tokenizer_config.json", settings)

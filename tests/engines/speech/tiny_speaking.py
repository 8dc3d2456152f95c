"""Tiny checkpoints with random weights of models that speak, in the formats in which they are published, and the codecs
that some of them fetch from other repositories."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from tests.engines.speech.tiny_hearing import CHATML, LETTERS, LLAMA, write_tokenizer

COMMIT = "a" * 40
Json = dict[str, Any]

FIRST_CODE = 128266  # of Orpheus's vocabulary
CODES = 4096


def snapshot(hub: Path, repository: str) -> Path:
    """The folder of a repository in a cache of the Hub."""
    root = hub / f"models--{repository.replace('/', '--')}"
    folder = root / "snapshots" / COMMIT
    folder.mkdir(parents=True, exist_ok=True)
    (root / "refs").mkdir(exist_ok=True)
    (root / "refs" / "main").write_text(COMMIT)
    return folder


def weights_of(model: nn.Module, spread: float = 0.2) -> dict[str, mx.array]:
    mx.random.seed(3)
    return {
        name: array + spread * mx.random.normal(array.shape) if array.ndim > 1 else array
        for name, array in tree_flatten(model.parameters())
    }


def write_weights(folder: Path, weights: dict[str, mx.array]) -> None:
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})


def write_snac(hub: Path) -> None:
    from mlx_audio.codec.models.snac import SNAC

    config = {
        "sampling_rate": 24000,
        "encoder_dim": 4,
        "encoder_rates": [2, 4],
        "decoder_dim": 16,
        "decoder_rates": [4, 2],
        "attn_window_size": None,
        "codebook_size": 8 * CODES,  # so that a code of any place is one
        "codebook_dim": 4,
        "vq_strides": [4, 2, 1],
        "noise": False,
    }
    folder = snapshot(hub, "mlx-community/snac_24khz")
    (folder / "config.json").write_text(json.dumps(config))
    write_weights(folder, weights_of(SNAC(**config)))


def write_dac(hub: Path, repository: str, codebooks: int) -> None:
    from mlx_audio.codec.models.descript import DAC

    config = {
        "encoder_dim": 4,
        "encoder_rates": [2, 4],
        "decoder_dim": 16,
        "decoder_rates": [4, 2],
        "n_codebooks": codebooks,
        "codebook_size": 1024,
        "codebook_dim": 4,
        "sample_rate": 24000,
    }
    folder = snapshot(hub, repository)
    (folder / "config.json").write_text(json.dumps(config))
    write_weights(folder, weights_of(DAC(**config)))


def orpheus(folder: Path, hub: Path) -> None:
    write_snac(hub)
    write_tokenizer(folder, ())
    config = {
        **LLAMA,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "rms_norm_eps": 1e-5,
        "vocab_size": FIRST_CODE + 7 * CODES,
        "hidden_size": 16,
        "tie_word_embeddings": False,
        "head_dim": 8,
    }
    (folder / "config.json").write_text(json.dumps(config))
    from mlx_audio.lm.models.llama import Model, ModelArgs

    weights = weights_of(Model(ModelArgs.from_dict(config)))
    head = weights["lm_head.weight"]
    place = mx.arange(head.shape[0])[:, None]
    is_code = (place >= FIRST_CODE) & (place < FIRST_CODE + CODES)
    weights["lm_head.weight"] = mx.where(is_code, head, 0.0)
    write_weights(folder, weights)


def qwen3_tts(folder: Path, hub: Path) -> None:
    words = write_tokenizer(folder, (*CHATML, "<tts_pad>", "<tts_bos>", "<tts_eos>"))
    layers = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "num_code_groups": 4,
    }
    talker = {
        **layers,
        "text_hidden_size": 32,
        "text_vocab_size": len(words),
        "vocab_size": 3072,  # the library forbids the last 1024
        "codec_language_id": {"english": 2050, "chinese": 2055},
        "spk_id": {"vivian": 3065, "ryan": 3061},
        "spk_is_dialect": {"vivian": False, "ryan": False},
        "code_predictor_config": {**layers, "vocab_size": 2048},
    }
    config = {
        "model_type": "qwen3_tts",
        "tts_model_type": "custom_voice",
        "tts_model_size": "1b7",
        "talker_config": talker,
        "im_start_token_id": words["<|im_start|>"],
        "im_end_token_id": words["<|im_end|>"],
        "tts_pad_token_id": words["<tts_pad>"],
        "tts_bos_token_id": words["<tts_bos>"],
        "tts_eos_token_id": words["<tts_eos>"],
    }
    write_library_model(folder, "qwen3_tts", config)
    from mlx_audio.tts.models.qwen3_tts.config import Qwen3TTSTokenizerConfig
    from mlx_audio.tts.models.qwen3_tts.speech_tokenizer import Qwen3TTSSpeechTokenizer

    codec = folder / "speech_tokenizer"
    codec.mkdir()
    decoder = {
        "latent_dim": 80,  # narrower layers the library takes for those of torch
        "codebook_dim": 160,
        "codebook_size": 2048,
        "decoder_dim": 320,
        "hidden_size": 16,
        "intermediate_size": 16,
        "head_dim": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "num_quantizers": 4,
        "vector_quantization_hidden_dimension": 160,
        "semantic_codebook_size": 2048,
        "upsample_rates": [2, 2],
        "upsampling_ratios": [2],
    }
    (codec / "config.json").write_text(json.dumps({"decoder_config": decoder, "decode_upsample_rate": 8}))
    tokenizer = Qwen3TTSSpeechTokenizer(Qwen3TTSTokenizerConfig(decoder_config=decoder))
    write_weights(codec, weights_of(tokenizer))


def dia(folder: Path, hub: Path) -> None:
    write_dac(hub, "mlx-community/descript-audio-codec-44khz", 9)
    config = {
        "version": "0.1",
        "model": {
            "encoder": {"n_layer": 1, "n_embd": 16, "n_hidden": 24, "n_head": 2, "head_dim": 8},
            "decoder": {
                "n_layer": 1,
                "n_embd": 16,
                "n_hidden": 24,
                "gqa_query_heads": 2,
                "cross_query_heads": 2,
                "kv_heads": 1,
                "gqa_head_dim": 8,
                "cross_head_dim": 8,
            },
            "src_vocab_size": 256,
            "tgt_vocab_size": 1028,
        },
        "training": {},
        "data": {
            "text_length": 128,
            "audio_length": 128,
            "channels": 9,
            "delay_pattern": [0, 8, 9, 10, 11, 12, 13, 14, 15],
        },
    }
    write_library_model(folder, "dia", config, hub)


def voxcpm(folder: Path, hub: Path) -> None:
    words = write_tokenizer(folder, ())
    size = {"hidden_dim": 16, "ffn_dim": 24, "num_heads": 2, "num_layers": 1}
    config = {
        "model_type": "voxcpm",
        "lm_config": {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "intermediate_size": 24,
            "vocab_size": max(len(words), 128),
            "rope_scaling": {
                "type": "longrope",
                "long_factor": [1.0] * 4,
                "short_factor": [1.0] * 4,
                "original_max_position_embeddings": 512,
            },
            "max_position_embeddings": 512,
        },
        "encoder_config": size,
        "dit_config": {**size, "cfm_config": {}},
        "audio_vae_config": {
            "encoder_dim": 4,
            "encoder_rates": [2, 4],
            "latent_dim": 8,
            "decoder_dim": 16,
            "decoder_rates": [4, 2],
            "sample_rate": 16000,
        },
        "patch_size": 2,
        "feat_dim": 8,
        "scalar_quantization_latent_dim": 8,
        "residual_lm_num_layers": 1,
        "max_length": 128,
    }
    write_library_model(folder, "voxcpm", config)


def pocket_tts(folder: Path, hub: Path) -> None:
    write_tokenizer(folder, ())
    config = {
        "model_type": "pocket_tts",
        "flow_lm": {
            "d_model": 8,
            "num_heads": 2,
            "num_layers": 1,
            "dim_feedforward": 24,
            "max_period": 10000,
            "n_bins": len(LETTERS) + 1,
            "lut_dim": 8,
            "flow_dim": 8,
            "flow_depth": 1,
            "ldim": 4,
        },
        "mimi": {
            "channels": 1,
            "sample_rate": 8000,
            "frame_rate": 1000,
            "dimension": 8,
            "quantizer_dimension": 4,
            "quantizer_output_dimension": 8,
            "n_filters": 2,
            "n_residual_layers": 1,
            "ratios": [2, 2],
            "kernel_size": 3,
            "last_kernel_size": 3,
            "residual_kernel_size": 3,
            "dilation_base": 2,
            "compress": 2,
            "transformer_d_model": 8,
            "transformer_num_heads": 2,
            "transformer_num_layers": 1,
            "transformer_layer_scale": 0.01,
            "transformer_context": 16,
            "transformer_max_period": 10000,
            "transformer_dim_feedforward": 16,
        },
    }
    write_library_model(folder, "pocket_tts", config)
    voices = folder / "embeddings"
    voices.mkdir()
    for name, loudness in (("alba", 0.1), ("marius", -0.3)):
        mx.save_safetensors(
            str(voices / f"{name}.safetensors"), {"audio_prompt": mx.full((1, 4, 8), loudness)}
        )


def kokoro(folder: Path, hub: Path) -> None:
    from mlx_audio.tts.models.base import check_array_shape

    config = {
        "istftnet": {
            "upsample_kernel_sizes": [4, 4],
            "upsample_rates": [2, 2],
            "gen_istft_hop_size": 5,
            "gen_istft_n_fft": 20,
            "resblock_dilation_sizes": [[1, 3, 5]],
            "resblock_kernel_sizes": [3],
            "upsample_initial_channel": 512,
        },
        "dim_in": 8,
        "dropout": 0.0,
        "hidden_dim": 512,  # which the library's decoder counts on, as on 128 numbers of style
        "max_conv_dim": 512,
        "max_dur": 1,
        "multispeaker": True,
        "n_layer": 1,
        "n_mels": 80,
        "n_token": len(LETTERS) + 1,
        "style_dim": 128,
        "text_encoder_kernel_size": 5,
        "plbert": {
            "hidden_size": 16,
            "num_attention_heads": 2,
            "intermediate_size": 24,
            "max_position_embeddings": 512,
            "num_hidden_layers": 1,
        },
        "vocab": {letter: number for number, letter in enumerate(LETTERS, 1)},
    }
    write_library_model(folder, "kokoro", config, spread=0.02)
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    for name, array in weights.items():
        if name.endswith(("F0_proj.weight", "N_proj.weight")) or (
            array.ndim == 3
            and ("noise_convs" in name or (name.endswith("weight_v") and not check_array_shape(array)))
        ):
            weights[name] = array.swapaxes(1, 2)  # as torch has them, in which layout they are published
        elif name.endswith("weight_g"):
            weights[name] = 0.015 * array  # or else the layers grow beyond what float32 holds
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    voices = folder / "voices"
    voices.mkdir()
    mx.random.seed(7)
    for name in ("af_heart", "ef_dora"):
        mx.save_safetensors(str(voices / f"{name}.safetensors"), {"voice": mx.random.normal((510, 1, 256))})


def write_library_model(
    folder: Path, family: str, config: Json, hub: Path | None = None, spread: float = 0.2
) -> None:
    """Write a configuration and random weights, in the layout that the library itself saves."""
    (folder / "config.json").write_text(json.dumps(config))
    package = importlib.import_module(f"mlx_audio.tts.models.{family}")
    given = {**json.loads(json.dumps(config)), "model_path": str(folder)}
    made = package.ModelConfig.from_dict(given) if hasattr(package, "ModelConfig") else given
    write_weights(folder, weights_of(package.Model(made), spread))


FAMILIES: dict[str, Callable[[Path, Path], None]] = {
    each.__name__: each for each in (orpheus, qwen3_tts, dia, voxcpm, pocket_tts, kokoro)
}


def write_speaking_model(family: str, folder: Path, hub: Path) -> Path:
    folder.mkdir()
    FAMILIES[family](folder, hub)
    return folder

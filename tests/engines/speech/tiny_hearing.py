"""Tiny checkpoints with random weights of models that hear through a language model or a decoder of their own, in the
formats in which they are published: configuration, weights, tokenizer and what else lies in their folders."""

import base64
import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import sentencepiece
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, WhisperFeatureExtractor

LETTERS = [*"abcdefghijklmnopqrstuvwxyz .,'\n"]
Json = dict[str, Any]

CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|audio_start|>", "<|audio_pad|>", "<|audio_end|>")
WHISPER_ENCODER: Json = {
    "d_model": 32,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "encoder_layers": 2,
    "num_mel_bins": 80,
}
LLAMA: Json = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def write_tokenizer(folder: Path, specials: Sequence[str], **more: Any) -> dict[str, int]:
    """A tokenizer of letters and special tokens; their ids."""
    words = {word: number for number, word in enumerate([*LETTERS, "<unk>", *specials])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens(list(specials))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **more).save_pretrained(folder)
    return words


def write_pieces(folder: Path, specials: Sequence[str], size: int = 64) -> None:
    """A tokenizer of SentencePiece, `tokenizer.model`."""
    corpus = ["the quick brown fox jumps over the lazy dog and packs five dozen liquor jugs of wax"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=size,
        hard_vocab_limit=False,
        user_defined_symbols=list(specials),
        minloglevel=2,
    )


def save(folder: Path, family: str, config: Json, spread: float = 0.3) -> None:
    """Write a configuration and random weights, in the layout that the library itself saves."""
    (folder / "config.json").write_text(json.dumps(config))
    package = importlib.import_module(f"mlx_audio.stt.models.{family}")
    mx.random.seed(3)
    model = package.Model(package.ModelConfig.from_dict(json.loads(json.dumps(config))))
    weights = {
        name: array + spread * mx.random.normal(array.shape) if array.ndim > 1 else array
        for name, array in tree_flatten(model.parameters())
    }
    for name in [
        each for each in weights if "fsmn_block.weight" in each
    ]:  # SenseVoice is read in the layout of torch
        weights[name] = weights[name].swapaxes(1, 2)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})


def qwen3_asr(folder: Path) -> None:
    words = write_tokenizer(folder, CHATML, eos_token="<|im_end|>")
    WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)
    save(
        folder,
        "qwen3_asr",
        {
            "model_type": "qwen3_asr",
            "audio_config": {
                **WHISPER_ENCODER,
                "max_source_positions": 100,
                "n_window": 10,
                "output_dim": 32,
                "n_window_infer": 80,
                "conv_chunksize": 50,
                "downsample_hidden_size": 16,
            },
            "text_config": {**LLAMA, "head_dim": 16, "vocab_size": len(words)},
            "audio_token_id": words["<|audio_pad|>"],
            "audio_start_token_id": words["<|audio_start|>"],
            "audio_end_token_id": words["<|audio_end|>"],
            "support_languages": ["Chinese", "English", "German"],
        },
    )


def glmasr(folder: Path) -> None:
    specials = ("<|user|>", "<|assistant|>", "<|begin_of_audio|>", "<|end_of_audio|>", "<|endoftext|>")
    words = write_tokenizer(folder, specials, eos_token="<|endoftext|>")
    save(
        folder,
        "glmasr",
        {
            "model_type": "glmasr",
            "whisper_config": {**WHISPER_ENCODER, "num_mel_bins": 128, "max_source_positions": 1500},
            "lm_config": {
                **LLAMA,
                "vocab_size": len(words),
                "eos_token_id": [words["<|endoftext|>"]],
                "pad_token_id": 0,
            },
            "merge_factor": 4,
        },
    )


def granite_speech(folder: Path) -> None:
    words = write_tokenizer(folder, ("<|end_of_text|>", "<|audio|>"), eos_token="<|end_of_text|>")
    save(
        folder,
        "granite_speech",
        {
            "model_type": "granite_speech",
            "encoder_config": {
                "input_dim": 160,
                "num_layers": 2,
                "hidden_dim": 32,
                "num_heads": 2,
                "dim_head": 16,
                "output_dim": 8,
                "context_size": 20,
                "max_pos_emb": 32,
                "conv_kernel_size": 5,
            },
            "projector_config": {
                "hidden_size": 32,
                "num_attention_heads": 2,
                "intermediate_size": 48,
                "encoder_hidden_size": 32,
            },
            "text_config": {**LLAMA, "vocab_size": len(words)},
            "audio_token_index": words["<|audio|>"],
        },
    )


def canary(folder: Path) -> None:
    specials = (
        "<|startofcontext|>",
        "<|startoftranscript|>",
        "<|emo:undefined|>",
        "<|endoftext|>",
        "<|en|>",
        "<|de|>",
        "<|pnc|>",
        "<|nopnc|>",
        "<|noitn|>",
        "<|notimestamp|>",
        "<|nodiarize|>",
    )
    write_pieces(folder, specials)
    size = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model")).get_piece_size()
    save(
        folder,
        "canary",
        {
            "model_type": "canary",
            "preprocessor": {"features": 80},
            "encoder": {
                "feat_in": 80,
                "n_layers": 2,
                "d_model": 32,
                "n_heads": 2,
                "ff_expansion_factor": 2,
                "subsampling_conv_channels": 8,
                "pos_emb_max_len": 500,
            },
            "transf_decoder": {
                "num_layers": 2,
                "hidden_size": 32,
                "num_attention_heads": 2,
                "inner_size": 48,
            },
            "vocab_size": size,
            "enc_output_dim": 32,
        },
    )


def sensevoice(folder: Path) -> None:
    tokens = [f"▁{first}{second}" for first in "abcdefghij" for second in "klmnopqrst"]
    (folder / "tokens.json").write_text(json.dumps(tokens))
    save(
        folder,
        "sensevoice",
        {
            "model_type": "sensevoice",
            "vocab_size": len(tokens),
            "input_size": 560,
            "encoder_conf": {
                "output_size": 32,
                "attention_heads": 2,
                "linear_units": 48,
                "num_blocks": 2,
                "tp_blocks": 1,
            },
        },
    )


def voxtral_realtime(folder: Path) -> None:
    pieces = [{"token_bytes": base64.b64encode(letter.encode()).decode()} for letter in LETTERS]
    tekken = {"vocab": pieces, "config": {"default_num_special_tokens": 40}, "special_tokens": []}
    (folder / "tekken.json").write_text(json.dumps(tekken))
    save(
        folder,
        "voxtral_realtime",
        {
            "model_type": "voxtral_realtime",
            "encoder_args": {
                "dim": 32,
                "n_layers": 2,
                "n_heads": 2,
                "head_dim": 16,
                "hidden_dim": 48,
                "n_kv_heads": 2,
            },
            "decoder": {
                "dim": 3072,  # which the library's encoder counts on
                "n_layers": 1,
                "n_heads": 2,
                "n_kv_heads": 1,
                "head_dim": 16,
                "hidden_dim": 48,
                "vocab_size": 40 + len(LETTERS),
                "ada_rms_norm_t_cond_dim": 8,
            },
            "vocab_size": 40 + len(LETTERS),
            "hidden_size": 3072,
        },
    )


FAMILIES: dict[str, Callable[[Path], None]] = {
    each.__name__: each for each in (qwen3_asr, glmasr, granite_speech, canary, sensevoice, voxtral_realtime)
}


def write_hearing_model(family: str, folder: Path) -> Path:
    folder.mkdir()
    FAMILIES[family](folder)
    return folder

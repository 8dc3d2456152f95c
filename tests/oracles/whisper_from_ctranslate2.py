"""Makes a Whisper folder in the form of transformers, which mlx-audio reads, of one in CTranslate2's.

    python tests/oracles/whisper_from_ctranslate2.py SOURCE TARGET

The binary file (CTranslate2's `model_spec.py`): version, name and revision of the specification, then each variable
as name, rank, dimensions, type, size and bytes.
"""

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

Array = npt.NDArray[Any]
TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


def read_variables(path: Path) -> dict[str, Array]:
    data = path.read_bytes()
    position = 0

    def number(form: str) -> int:
        nonlocal position
        [value] = struct.unpack_from("<" + form, data, position)
        position += struct.calcsize("<" + form)
        return int(value)

    def text() -> str:
        nonlocal position
        length = number("H")  # with the zero at the end
        value = data[position : position + length - 1].decode()
        position += length
        return value

    assert number("I") == 6
    assert text() == "WhisperSpec"
    number("I")
    found = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        dtype = TYPES[number("B")]
        size = number("I")
        found[name] = np.frombuffer(data, dtype, size // np.dtype(dtype).itemsize, position).reshape(shape)
        position += size
    return found


def renamed(variables: dict[str, Array]) -> dict[str, Array]:
    """transformers' names; fused projections are cut into query, key and value."""
    found: dict[str, Array] = {}
    for name, array in variables.items():
        parts = name.split("/")
        if array.ndim == 0 or parts[-1] not in ("weight", "bias", "gamma", "beta", "encodings"):
            continue
        side, *inner = parts
        last = {"gamma": "weight", "beta": "bias"}.get(inner[-1], inner[-1])
        head = f"model.{side}"
        match inner[:-1]:
            case ["embeddings"]:
                found[f"{head}.embed_tokens.weight"] = array
            case ["position_encodings"]:
                found[f"{head}.embed_positions.weight"] = array
            case ["conv1" | "conv2" as layer] | ["layer_norm" as layer]:
                found[f"{head}.{layer}.{last}"] = array
            case [layer, block, "layer_norm"]:
                norm = {"ffn": "final", "self_attention": "self_attn", "attention": "encoder_attn"}[block]
                found[f"{head}.layers.{layer.removeprefix('layer_')}.{norm}_layer_norm.{last}"] = array
            case [layer, "ffn", linear]:
                full = {"linear_0": "fc1", "linear_1": "fc2"}[linear]
                found[f"{head}.layers.{layer.removeprefix('layer_')}.{full}.{last}"] = array
            case [layer, "self_attention" | "attention" as block, linear]:
                attention = {"self_attention": "self_attn", "attention": "encoder_attn"}[block]
                stem = f"{head}.layers.{layer.removeprefix('layer_')}.{attention}"
                names = {
                    ("self_attn", "linear_0"): ("q_proj", "k_proj", "v_proj"),
                    ("self_attn", "linear_1"): ("out_proj",),
                    ("encoder_attn", "linear_0"): ("q_proj",),
                    ("encoder_attn", "linear_1"): ("k_proj", "v_proj"),
                    ("encoder_attn", "linear_2"): ("out_proj",),
                }[attention, linear]
                for projection, piece in zip(names, np.split(array, len(names)), strict=True):
                    if (projection, last) != ("k_proj", "bias"):  # Whisper's keys have none; here it is zeros
                        found[f"{stem}.{projection}.{last}"] = piece
    return found


def convert(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    weights = renamed(read_variables(source / "model.bin"))
    save_file(
        {name: np.ascontiguousarray(array) for name, array in weights.items()}, target / "model.safetensors"
    )
    layers = {name.split(".")[3] for name in weights if name.startswith("model.encoder.layers.")}
    vocabulary, width = weights["model.decoder.embed_tokens.weight"].shape
    settings = json.loads((source / "config.json").read_text())
    config = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": vocabulary,
        "d_model": width,
        "num_mel_bins": weights["model.encoder.conv1.weight"].shape[1],
        "max_source_positions": weights["model.encoder.embed_positions.weight"].shape[0],
        "max_target_positions": weights["model.decoder.embed_positions.weight"].shape[0],
        "bos_token_id": 50257,
        "eos_token_id": 50257,
        "pad_token_id": 50257,
        "decoder_start_token_id": 50258,
    }
    for side in ("encoder", "decoder"):
        config |= {f"{side}_layers": len(layers), f"{side}_attention_heads": width // 64}
        config[f"{side}_ffn_dim"] = weights[f"model.{side}.layers.0.fc1.weight"].shape[0]
    generation = {
        "no_timestamps_token_id": 50363,
        "max_initial_timestamp_index": 50,
        "alignment_heads": settings["alignment_heads"],
        "suppress_tokens": settings["suppress_ids"],
        "begin_suppress_tokens": settings["suppress_ids_begin"],
        "decoder_start_token_id": 50258,
        "eos_token_id": 50257,
    }
    audio = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": config["num_mel_bins"],
        "sampling_rate": 16000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": 30,
        "n_samples": 480000,
        "nb_max_frames": 3000,
    }
    words = {
        "tokenizer_class": "WhisperTokenizer",
        "eos_token": "<|endoftext|>",
        "bos_token": "<|endoftext|>",
    }
    words |= {"unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "model_max_length": 448}
    for name, content in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("preprocessor_config.json", audio),
        ("tokenizer_config.json", words),
    ):
        (target / name).write_text(json.dumps(content, indent=1))
    (target / "tokenizer.json").write_text(
        json.dumps(with_timestamps(json.loads((source / "tokenizer.json").read_text())))
    )


def with_timestamps(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """CTranslate2's users leave the last 1501 tokens out: `<|0.00|>` to `<|30.00|>`."""
    tokens = tokenizer["added_tokens"]
    last = tokens[-1]
    assert last["content"] == "<|notimestamps|>"
    for step in range(1501):
        tokens.append(
            {**last, "id": last["id"] + 1 + step, "content": f"<|{step / 50:.2f}|>", "special": False}
        )
    return tokenizer


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))

"""Random 4-bit models whose few layers have the sizes of well-known ones, for `benchmarks.cpu_kernels`.

    python -m benchmarks.layers NAME DESTINATION

writes the folder DESTINATION/NAME. Names: qwen3-30b-a3b (a mixture of 64 experts in place of 128, so that it fits in
float32 as well), gemma3-4b (a layer with a window and one without), qwen3-next (hybrid).
llama-1b and llama-7b are whole. `--gguf FILE` writes a llama of the same weights for llama.cpp too: with `--group 32`
as Q4_1, which holds the very same numbers, else rounded to Q4_0. `--tokenizer FOLDER FILE` gives both the tokenizer of
another model, of which FOLDER and FILE are the two forms, so that whole servers can be asked (`benchmarks.compare`).
"""

import argparse
import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map

from benchmarks.weights import copy_tokenizer

WORDS = 49_152
BITS = 4
EXACT_GROUP = 32
"""Numbers that share a factor and a minimum in Q4_1."""
COMMON: dict[str, Any] = {
    "vocab_size": WORDS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
LLAMA: dict[str, Any] = {**COMMON, "model_type": "llama", "tie_word_embeddings": False}
MODELS: dict[str, dict[str, Any]] = {
    "llama-1b": {
        **LLAMA,
        "num_hidden_layers": 16,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "llama-7b": {
        **LLAMA,
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
    "qwen3-30b-a3b": {
        **COMMON,
        **EXPERTS,
        "model_type": "qwen3_moe",
        "num_hidden_layers": 2,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
    },
    "gemma3-4b": {
        **COMMON,
        "model_type": "gemma3_text",
        "num_hidden_layers": 2,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 1024,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 256,
    },
    "qwen3-next": {
        **COMMON,
        **EXPERTS,
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "num_experts": 32,
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "full_attention_interval": 4,
        "linear_num_value_heads": 32,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    },
}


@dataclass(frozen=True)
class TokenizerSource:
    """A model whose tokenizer is used: its folder, and the same model as a file for llama.cpp."""

    folder: Path
    file: Path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=sorted(MODELS))
    parser.add_argument("destination", type=Path)
    parser.add_argument("--group", type=int, choices=(32, 64, 128), default=64)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--tokenizer", type=Path, nargs=2, metavar=("FOLDER", "FILE"))
    given = parser.parse_args()
    config, folder = MODELS[given.name], given.destination / given.name
    tokenizer = None if given.tokenizer is None else TokenizerSource(*given.tokenizer)
    write(config, folder, given.group)
    if tokenizer is not None:
        copy_tokenizer(tokenizer.folder, folder)
    if given.gguf is not None:
        write_gguf(config, folder, given.gguf, given.group, tokenizer)


def write(config: dict[str, Any], folder: Path, group: int) -> None:
    """Scales in float16 where they are to be the same in Q4_1, else in bfloat16, as most models have them."""
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    nn.quantize(model, group, BITS)
    kind = mx.float16 if group == EXACT_GROUP else mx.bfloat16

    def narrow(array: mx.array) -> mx.array:
        return array.astype(kind) if array.dtype == mx.float32 else array

    weights = dict(tree_flatten(tree_map(narrow, model.parameters())))
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    config = {**config, "quantization": {"group_size": group, "bits": BITS}}
    (folder / "config.json").write_text(json.dumps(config, indent=1))


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(path: str) -> str:
    if not path.startswith("model.layers."):
        return f"{GGUF_NAMES[path]}.weight"
    _, _, layer, rest = path.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[rest]}.weight"


def write_gguf(
    config: dict[str, Any], folder: Path, file: Path, group: int, tokenizer: TokenizerSource | None
) -> None:
    """Rotary rows stay in the order that they have: random ones are as good in any."""
    import gguf  # of the package of that name, which nothing else here needs

    exact = group == EXACT_GROUP
    types = gguf.GGMLQuantizationType
    writer = gguf.GGUFWriter(file, "llama", use_temp_file=True)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1 if exact else gguf.LlamaFileType.MOSTLY_Q4_0)
    if tokenizer is None:
        writer.add_tokenizer_model("no_vocab")
    else:
        for name, field in gguf.GGUFReader(tokenizer.file).fields.items():
            if name.startswith("tokenizer."):
                kinds = [*field.types, None]
                writer.add_key_value(name, field.contents(), kinds[0], kinds[1])
    for name, array, packed in gguf_tensors(folder, group, exact=exact):
        kind = (types.Q4_1 if exact else types.Q4_0) if packed else None
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors(folder: Path, group: int, *, exact: bool) -> Iterator[tuple[str, Any, bool]]:
    """The name of each matrix and vector, its numbers, and whether they are packed."""
    import gguf
    import numpy as np

    weights: Any = mx.load(str(folder / "model.safetensors"))
    for name in sorted(weights):
        path, kind = name.rsplit(".", 1)
        if kind != "weight":
            continue
        if f"{path}.scales" not in weights:
            yield gguf_name(path), np.array(weights[name].astype(mx.float32)), False
            continue
        parts = [weights.pop(f"{path}.{part}") for part in ("weight", "scales", "biases")]
        if exact:
            yield gguf_name(path), q4_1(*map(np.array, parts)), True
            continue
        dense = np.array(mx.dequantize(*parts, group, BITS).astype(mx.float32))
        yield gguf_name(path), gguf.quants.quantize(dense, gguf.GGMLQuantizationType.Q4_0), True


def q4_1(words: Any, scales: Any, biases: Any) -> Any:
    """Blocks of Q4_1 [rows, bytes], of MLX's affine form in groups of 32: factor, minimum, and 16 bytes, whose low
    halves are the numbers 0 to 15 and whose high halves are 16 to 31 (ggml-common.h, block_q4_1)."""
    import numpy as np

    rows, groups = scales.shape
    packed = words.view(np.uint8).reshape(rows, groups, EXACT_GROUP // 2)  # two neighbours in a byte
    numbers = np.stack([packed & 15, packed >> 4], axis=-1).reshape(rows, groups, EXACT_GROUP)
    halves = numbers[..., : EXACT_GROUP // 2] | numbers[..., EXACT_GROUP // 2 :] << 4
    ends = np.stack([scales, biases], axis=-1).view(np.uint8).reshape(rows, groups, 4)
    return np.concatenate([ends, halves], axis=-1).reshape(rows, -1)


if __name__ == "__main__":
    main()

"""Writes small GGUF files with the gguf library: models of each architecture with random weights."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

HIDDEN, HEADS, KEY_HEADS, HEAD, WIDE, WINDOW = 128, 4, 2, 32, 96, 128
BYTES = [
    *range(33, 127),
    *range(161, 173),
    *range(174, 256),
]  # bytes that byte-level BPE writes as themselves


def byte_alphabet() -> list[str]:
    """What byte-level BPE writes for each of the 256 bytes."""
    hidden = [byte for byte in range(256) if byte not in BYTES]
    table = {byte: chr(byte) for byte in BYTES} | {
        byte: chr(256 + place) for place, byte in enumerate(hidden)
    }
    return [table[byte] for byte in range(256)]


TOKENS = ["<|end|>", "<|turn|>", *byte_alphabet(), "he", "ll", "hell", "hello"]
MERGES = ["h e", "l l", "he ll", "hell o"]
NORMS = {
    "llama": ("attn_norm", "ffn_norm"),
    "qwen2": ("attn_norm", "ffn_norm"),
    "qwen3": ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"),
    "gemma3": ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"),
}


class GgufFileBuilder:
    """A model whose metadata and tensors a test may change before it is written."""

    def __init__(self, architecture: str = "llama", *, tied: bool = True, head: int = HEAD) -> None:
        self.architecture = architecture
        self.layers = 6 if architecture == "gemma3" else 2  # every sixth layer of Gemma sees the whole window
        self.head = head
        self.random = np.random.default_rng(0)
        self.metadata: dict[str, Any] = self._metadata(head)
        self.tensors: dict[str, NDArray[Any]] = {}
        self.types: dict[str, gguf.GGMLQuantizationType] = {}
        self._fill(tied)

    def values(self, *shape: int) -> NDArray[np.float32]:
        return (self.random.standard_normal(shape) * 0.1).astype(np.float32)

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        for key, value in self.metadata.items():
            match value:
                case bool():
                    writer.add_bool(key, value)
                case int():
                    writer.add_uint32(key, value)
                case float():
                    writer.add_float32(key, value)
                case str():
                    writer.add_string(key, value)
                case _:
                    writer.add_array(key, value)
        for name, data in self.tensors.items():
            kind = self.types.get(name)
            if kind is None:
                writer.add_tensor(name, data)
            elif data.dtype == np.uint8:
                writer.add_tensor(name, data, raw_dtype=kind)
            else:
                writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _metadata(self, head: int) -> dict[str, Any]:
        name = self.architecture
        metadata: dict[str, Any] = {
            f"{name}.context_length": WINDOW,
            f"{name}.embedding_length": HIDDEN,
            f"{name}.block_count": self.layers,
            f"{name}.feed_forward_length": WIDE,
            f"{name}.attention.head_count": HEADS,
            f"{name}.attention.head_count_kv": KEY_HEADS,
            f"{name}.attention.key_length": head,
            f"{name}.attention.value_length": head,
            f"{name}.attention.layer_norm_rms_epsilon": 1e-5,
            f"{name}.rope.freq_base": 10000.0,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": TOKENS,
            "tokenizer.ggml.token_type": [3, 3] + [1] * (len(TOKENS) - 2),
            "tokenizer.ggml.merges": MERGES,
            "tokenizer.ggml.eos_token_id": 0,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
        }
        if name == "gemma3":
            metadata["gemma3.attention.sliding_window"] = 16
        if name == "qwen2":  # whose heads fill the hidden size
            metadata |= {"qwen2.attention.head_count": HIDDEN // head, "qwen2.attention.head_count_kv": 1}
        return metadata

    def _fill(self, tied: bool) -> None:
        heads = self.metadata[f"{self.architecture}.attention.head_count"]
        keys = self.metadata[f"{self.architecture}.attention.head_count_kv"]
        shapes = {
            "attn_q": (heads * self.head, HIDDEN),
            "attn_k": (keys * self.head, HIDDEN),
            "attn_v": (keys * self.head, HIDDEN),
            "attn_output": (HIDDEN, heads * self.head),
            "ffn_gate": (WIDE, HIDDEN),
            "ffn_up": (WIDE, HIDDEN),
            "ffn_down": (HIDDEN, WIDE),
        }
        self.tensors["token_embd.weight"] = self.values(len(TOKENS), HIDDEN)
        for layer in range(self.layers):
            for name, shape in shapes.items():
                self.tensors[f"blk.{layer}.{name}.weight"] = self.values(*shape)
                if self.architecture == "qwen2" and name in ("attn_q", "attn_k", "attn_v"):
                    self.tensors[f"blk.{layer}.{name}.bias"] = self.values(shape[0])
            for name in NORMS[self.architecture]:
                size = self.head if name in ("attn_q_norm", "attn_k_norm") else HIDDEN
                self.tensors[f"blk.{layer}.{name}.weight"] = 1 + self.values(size)
        self.tensors["output_norm.weight"] = 1 + self.values(HIDDEN)
        if not tied:
            self.tensors["output.weight"] = self.values(len(TOKENS), HIDDEN)

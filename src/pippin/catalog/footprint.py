"""Estimates the memory of a loaded model from the headers of its weight files."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from pippin.catalog.info import RECURRENT, is_full
from pippin.config.accelerator import accelerator, has_cpu_kernels
from pippin.config.options.model import ModelOptions, asked_type, cache_bits, machines_of
from pippin.core.models import ModelInfo, ModelKind
from pippin.core.published import Json, find_json, table, whole
from pippin.core.safetensors import StoredArray, find_header, stored_weights

PROCESS_BYTES: Final = 200 * 1024**2  # Python, libraries and tokenizer of a worker
ENCODER_PROCESS_BYTES: Final = 150 * 1024**2
"""The same for a BERT, whose tokenizer is small. Measured in all at the peak of a load: 229 MB with 91 MB of float32
weights; 233 MB with the same weights as 45 MB of bfloat16, half of them embeddings."""
BYTES: Final = {f"{kind}{bits}": bits // 8 for kind in "FIU" for bits in (16, 32, 64)} | {"BF16": 2}
"""Of each of safetensors' types of 16 bits and more."""
IN_KERNELS: Final = 1.3
"""Factor on the stored size of weights that the CPU kernels hold. Measured, without the process itself: 1.07 for 3.6 GB
in 4 bits and 1.13 for 0.6 GB; at the peak of their loads 1.09 and 1.26."""
KERNEL_DECODERS: Final = frozenset(
    "gemma gemma2 gemma3_text gpt_oss granite llama mistral mixtral phi3 qwen2 qwen3 qwen3_moe smollm3".split()
)
"""`model_type` of decoders that the kernels run as a whole: `engines/language/kernels/architectures.py` has the
conditions."""
ENCODERS: Final = frozenset(
    "bert camembert distilbert electra gte modernbert mpnet new nomic_bert roberta xlm-roberta".split()
)
FOREIGN_EMBEDDERS: Final = frozenset({"gemma3_text"})
"""Decoders that become other models when they embed, unknown to the kernels: EmbeddingGemma attends both ways."""
UNPACKED: Final = ("F8_E4M3", "I8", "U8")
"""Types of matrices that other tools have quantised, which become floats at the load."""
FLOATS: Final = ("F64", "F32", "F16", "BF16")


def footprint(info: ModelInfo, options: ModelOptions) -> int:
    """Bytes of the weights (a drafter's too) and of the process that holds them; the KV cache comes on top."""
    if info.path is None or info.kind == "scripted":
        return PROCESS_BYTES // 4
    folder = Path(info.path)
    config = find_json(folder / "config.json") or {}
    return bytes_of_arrays(_all_arrays(folder), config, options, info.kind, stored=info.size_bytes)


def process_bytes(config: Json, kind: ModelKind) -> int:
    """Bytes that a worker takes beside the weights of such a model."""
    encodes = kind in ("embeddings", "reranking") and config.get("model_type") in ENCODERS
    return ENCODER_PROCESS_BYTES if encodes else PROCESS_BYTES


def runs_on_kernels(config: Json, options: ModelOptions, kind: ModelKind = "language") -> bool:
    """Whether the CPU kernels will hold this model's weights as stored. The kernels do not run ranks."""
    whole = len(machines_of(options)) == 1
    wanted = whole and options.cpu_kernels == "auto" and asked_type(options) in ("auto", "float32")
    name = config.get("model_type")
    known = name in KERNEL_DECODERS and not table(config.get("vision_config"))
    if kind == "embeddings":
        known = known and name not in FOREIGN_EMBEDDERS
    return wanted and known and accelerator() == "cpu" and has_cpu_kernels()


def context_bytes(config: Json, tokens: int, value_bytes: int, options: ModelOptions) -> int | None:
    """Bytes of the keys and values of one sequence, as config.json tells them; `value_bytes` is the size of a number
    that is not quantised. None where it does not tell its heads. The state of recurrent layers, of a constant size, is
    not counted."""
    text = table(config.get("text_config")) or config
    heads, hidden = whole(text.get("num_attention_heads")), whole(text.get("hidden_size"))
    layers = whole(text.get("num_hidden_layers"))
    if heads is None or hidden is None or layers is None:
        return None
    full = 0 if text.get("model_type") in RECURRENT else sum(is_full(text, place) for place in range(layers))
    window = whole(text.get("sliding_window"))
    in_windows = 0 if window is None else (layers - full) * min(tokens, window)
    if "kv_lora_rank" in text:
        # An index keeps its vectors beside the latent ones, in a cache of keys and values.
        named = ("kv_lora_rank", "qk_rope_head_dim", "index_head_dim", "index_head_dim")
        latent = sum(whole(text.get(name)) or 0 for name in named)
        return (full * tokens + in_windows) * latent * value_bytes
    numbers = (whole(text.get("num_key_value_heads")) or heads) * (
        whole(text.get("head_dim")) or hidden // heads
    )
    packed = 2 * value_bytes / options.kv_group_size  # the scale and offset of a group
    widths = [value_bytes if bits is None else bits / 8 + packed for bits in cache_bits(options)]
    return int(full * tokens * numbers * sum(widths)) + in_windows * numbers * 2 * value_bytes


def weight_bytes(folder: Path, value_bytes: int | None) -> int:
    """Bytes of all arrays: as stored, or with each weight in `value_bytes` and quantised ones unpacked.

    Unreadable files count nothing.
    """
    settings = _quantization(find_json(folder / "config.json") or {})
    return sum(_array_bytes(name, array, settings, value_bytes) for name, array in _all_arrays(folder))


def bytes_of_arrays(
    arrays: Iterable[tuple[str, StoredArray]],
    config: Json,
    options: ModelOptions,
    kind: ModelKind,
    *,
    stored: int = 0,
) -> int:
    """The `footprint` by headers, depending on what is installed here; `config` is the model's config.json. `stored`
    are the bytes of files whose headers tell nothing."""
    settings, kernels = _quantization(config), runs_on_kernels(config, options, kind)
    widened = None if kernels else _value_bytes(options)
    weights = sum(_array_bytes(name, array, settings, widened) for name, array in arrays)
    weights = int(IN_KERNELS * weights) if kernels else weights
    found = process_bytes(config, kind) + (weights or stored)
    if options.draft_model_path is not None:
        # What drafts beside the model. Embeddings in a draft head's file count even if the model's replace them,
        # because both are in memory during the load.
        found += weight_bytes(Path(options.draft_model_path).expanduser(), _value_bytes(options))
    return found


def _quantization(config: Json) -> Json:
    return table(config.get("quantization")) or table(config.get("quantization_config"))


def _value_bytes(options: ModelOptions) -> int | None:
    asked = asked_type(options)
    if asked == "float32" or (asked == "auto" and accelerator() == "cpu"):
        return 4
    return None  # quantised weights stay packed; dense ones are 16 bits wide in nearly all checkpoints


def _array_bytes(name: str, array: StoredArray, settings: Json, value_bytes: int | None) -> int:
    count = math.prod(array.shape)
    if count < 0:
        return 0
    stored = count * BYTES.get(array.dtype, 1)
    module, _, leaf = name.rpartition(".")
    if leaf == "weight" and array.dtype in UNPACKED:
        halves = 2 if array.dtype == "U8" and settings.get("quant_method") == "bitsandbytes" else 1
        packed = array.dtype == "U8" and halves == 1
        return stored if packed else count * halves * (value_bytes or (4 if accelerator() == "cpu" else 2))
    if value_bytes is None:
        return stored
    if leaf in ("qweight", "weight_packed"):
        return count * 32 // (whole(settings.get("bits")) or 4) * value_bytes
    if settings and accelerator() == "cpu":  # a GPU multiplies packed weights, whatever the type
        if array.dtype == "U32" and leaf == "weight":
            bits = whole(table(settings.get(module)).get("bits")) or whole(settings.get("bits")) or 4
            return count * 32 // bits * value_bytes
        if leaf in ("scales", "biases"):
            return 0
    return count * value_bytes if array.dtype in FLOATS else stored


def _all_arrays(folder: Path) -> Iterator[tuple[str, StoredArray]]:
    """The weight arrays that a load reads."""
    for path in stored_weights(folder):
        header = find_header(path)
        yield from header.arrays.items() if header is not None else ()

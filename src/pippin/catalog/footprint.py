"""Estimates the memory that a loaded model takes, from the headers of its weight files."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from pippin.catalog.folder_files import Json, find_json, table, whole
from pippin.config.accelerator import accelerator
from pippin.config.options.model import ModelOptions
from pippin.core.models import ModelInfo
from pippin.core.safetensors import StoredArray, read_header

AutoDtype = Literal["stored", "float32"]
"""What `dtype: auto` comes to: "float32" on a CPU, where weights are dequantised, else "stored"."""

PROCESS_BYTES: Final = 200 * 1024**2  # Python, libraries and tokenizer of a worker
BYTES: Final = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
}
FLOATS: Final = ("F64", "F32", "F16", "BF16")


def footprint(info: ModelInfo, options: ModelOptions, auto: AutoDtype | None = None) -> int:
    """Bytes in memory of the weights and the process that holds them; the KV cache comes on top.

    `auto` is what the device makes of `dtype: auto`; without it what is installed here decides.
    """
    if info.path is None or info.kind == "scripted":
        return PROCESS_BYTES // 4
    weights = weight_bytes(Path(info.path), _value_bytes(options, auto))
    return PROCESS_BYTES + (weights or info.size_bytes)


def weight_bytes(folder: Path, value_bytes: int | None) -> int:
    """Bytes of all arrays: as stored, or with each weight in `value_bytes`, quantised ones unpacked.

    Files that cannot be read count nothing.
    """
    config = find_json(folder / "config.json") or {}
    settings = table(config.get("quantization")) or table(config.get("quantization_config"))
    total = 0
    for pattern in ("*.safetensors", "*/*.safetensors"):
        for path in folder.glob(pattern):
            for name, array in _arrays(path).items():
                total += _array_bytes(name, array, settings, value_bytes)
    return total


def bytes_of_arrays(arrays: Mapping[str, StoredArray], config: Json, options: ModelOptions) -> int:
    """As `footprint`, from headers that lie elsewhere than in a folder; `config` is the model's config.json."""
    settings = table(config.get("quantization")) or table(config.get("quantization_config"))
    value_bytes = _value_bytes(options, None)
    return PROCESS_BYTES + sum(
        _array_bytes(name, array, settings, value_bytes) for name, array in arrays.items()
    )


def _value_bytes(options: ModelOptions, auto: AutoDtype | None) -> int | None:
    match options.dtype:
        case "float32":
            return 4
        case "auto":
            decided = auto or ("float32" if accelerator() == "cpu" else "stored")
            return 4 if decided == "float32" else None
        case _:
            # Quantised weights stay packed, and dense ones are 16 bits wide in nearly all checkpoints.
            return None


def _array_bytes(name: str, array: StoredArray, settings: Json, value_bytes: int | None) -> int:
    count = math.prod(array.shape)
    if count < 0:
        return 0
    stored = count * BYTES.get(array.dtype, 1)
    if value_bytes is None:
        return stored
    module, _, leaf = name.rpartition(".")
    if settings and array.dtype == "U32" and leaf == "weight":
        bits = whole(table(settings.get(module)).get("bits")) or whole(settings.get("bits")) or 4
        return count * 32 // bits * value_bytes
    if settings and leaf in ("scales", "biases"):
        return 0
    return count * value_bytes if array.dtype in FLOATS else stored


def _arrays(path: Path) -> dict[str, StoredArray]:
    """The arrays that the header of a weight file lists; none if the file cannot be read."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return {}
        with path.open("rb") as file:
            header = read_header(file)
    except OSError:
        return {}
    return {} if header is None else header.arrays

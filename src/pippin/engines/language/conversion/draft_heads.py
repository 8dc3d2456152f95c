"""Keeps the layers that predict tokens further ahead (multi-token prediction), which mlx-lm and mlx-vlm drop.

Checkpoints hold them under names with `mtp` (Qwen3-Next, Qwen3.5, MiMo), or as layers after the last one
(`num_nextn_predict_layers` of DeepSeek-V3 and GLM-4.5).
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from pippin.core.conversion import DRAFT_HEADS, Quantization

NAMED: Final = re.compile(r"(?:^|\.)mtp(?:_[a-z_]+)?\.")
LAYER: Final = re.compile(r"(?:^|\.)layers\.(\d+)\.")
PACKING: Final = ("bits", "group_size", "mode")
ROUTER: Final = re.compile(r"(?:gate|router)\.weight$")
"""Small matrices that choose experts: they are not quantised."""


@dataclass(frozen=True)
class DraftHeads:
    """Arrays by the checkpoint's names, not read yet, and how packed ones were packed."""

    arrays: dict[str, mx.array]
    packed: dict[str, str]


def find(folder: Path, model: nn.Module, config: dict[str, Any]) -> DraftHeads:
    """The draft heads of the checkpoint; none if the model has them itself."""
    if any(NAMED.search(name) for name, _ in tree_flatten(model.parameters())):
        return DraftHeads({}, {})
    text = config.get("text_config")
    described = {**config, **(text if isinstance(text, dict) else {})}
    behind = described.get("num_hidden_layers") if described.get("num_nextn_predict_layers") else None
    found: dict[str, mx.array] = {}
    packed: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors")):
        loaded: Any = mx.load(str(path), return_metadata=True)
        arrays, metadata = loaded
        if path.name == DRAFT_HEADS:
            packed = {name: text for name, text in metadata.items() if name in PACKING}
        for name, array in arrays.items():
            layer = LAYER.search(name)
            is_behind = isinstance(behind, int) and layer is not None and int(layer[1]) >= behind
            if is_behind or NAMED.search(name):
                found[name] = array
    return DraftHeads(found, packed)


def write(path: Path, heads: DraftHeads, wanted: Quantization | None, dtype: mx.Dtype | None) -> None:
    """Write the heads under their own names, packed like the model or as they were; no file if there are none."""
    if not heads.arrays:
        return
    was_packed = any(name.endswith(".scales") for name in heads.arrays)
    written: dict[str, mx.array] = {}
    for name, array in heads.arrays.items():
        if was_packed or not mx.issubdtype(array.dtype, mx.floating):
            written[name] = array
            continue
        array = array if dtype is None else array.astype(dtype)
        if wanted is None or not _is_matrix(name, array, wanted.group_size):
            written[name] = array
            continue
        stem = name.removesuffix(".weight")
        parts = mx.quantize(array, group_size=wanted.group_size, bits=wanted.bits, mode=wanted.mode)
        written.update(
            {
                f"{stem}.{leaf}": part
                for leaf, part in zip(("weight", "scales", "biases"), parts, strict=False)
            }
        )
    packed = heads.packed
    if wanted is not None and not was_packed:
        packed = {"bits": str(wanted.bits), "group_size": str(wanted.group_size), "mode": wanted.mode}
    mx.save_safetensors(str(path), written, metadata={"format": "mlx", **packed})


def _is_matrix(name: str, array: mx.array, group_size: int) -> bool:
    fits = array.ndim >= 2 and array.shape[-1] % group_size == 0
    return fits and name.endswith(".weight") and ROUTER.search(name) is None

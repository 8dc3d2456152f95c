"""Keeps the layers that predict tokens further ahead (multi-token prediction), which mlx-lm and mlx-vlm drop.

Checkpoints hold them under names with `mtp` (Qwen3-Next, Qwen3.5, DeepSeek V4), or as layers after the last one
(`num_nextn_predict_layers` of DeepSeek-V3 and GLM-4.5).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from pippin.core.errands import ROUTER, Quantization

NAMED: Final = re.compile(r"(?:^|\.)mtp(?:_[a-z_]+)?\.")
LAYER: Final = re.compile(r"(?:^|\.)layers\.(\d+)\.")
PACKING: Final = ("bits", "group_size", "mode")
MATRIX: Final = re.compile(r"\.weight$|\.experts\.(?:gate_up|down)_proj$")
"""Names of matrices. Some checkpoints have those of all experts in one array without `.weight`."""
EXACT: Final = re.compile(r"(?:correction|expert|gate\.)_?bias$|\.hc_")
"""Vectors in float32 beside other types: what is added to a router's scores, and the weights of hyper-connections."""


@dataclass(frozen=True)
class DraftHeads:
    """Arrays by the checkpoint's names, not read yet, and the metadata that `DRAFT_HEADS` has of them."""

    arrays: dict[str, mx.array]
    metadata: dict[str, str]

    @property
    def packed(self) -> bool:
        """Whether matrices are quantised already, by MLX or as their publisher did it."""
        return any(
            name.endswith(".scales") or (array.ndim > 1 and array.dtype in (mx.uint8, mx.int8, mx.uint32))
            for name, array in self.arrays.items()
        )


def find(folder: Path, model: nn.Module, config: dict[str, Any]) -> DraftHeads:
    """The draft heads of the checkpoint; none if the model has them itself."""
    if any(NAMED.search(name) for name, _ in tree_flatten(model.parameters())):
        return DraftHeads({}, {})
    text = config.get("text_config")
    described = {**config, **(text if isinstance(text, dict) else {})}
    behind = described.get("num_hidden_layers") if described.get("num_nextn_predict_layers") else None
    found: dict[str, mx.array] = {}
    told: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors")):
        loaded: Any = mx.load(str(path), return_metadata=True)
        arrays, metadata = loaded
        for name, array in arrays.items():
            layer = LAYER.search(name)
            is_behind = isinstance(behind, int) and layer is not None and int(layer[1]) >= behind
            if is_behind or NAMED.search(name):
                found[name] = array
                told = metadata
    return DraftHeads(found, _metadata(told, found, described))


def _metadata(
    told: Mapping[str, str], found: Mapping[str, mx.array], config: Mapping[str, Any]
) -> dict[str, str]:
    """What a file's metadata and the configuration tell of the heads in it."""
    if "layout" in told:
        return {name: text for name, text in told.items() if name != "format"}
    if told.get("format") != "mlx":
        quantization = config.get("quantization_config")
        published = {} if quantization is None else {"quantization_config": json.dumps(quantization)}
        return {"layout": "published", **published}
    quantization = config.get("quantization")
    if not isinstance(quantization, dict) or not any(name.endswith(".scales") for name in found):
        return {"layout": "mlx"}
    return {"layout": "mlx", **_packing(quantization)}


def _packing(quantization: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(quantization.get(name, "affine")) for name in PACKING}


def write(path: Path, heads: DraftHeads, wanted: Quantization | None, dtype: mx.Dtype | None) -> None:
    """Write the heads under their own names, packed like the model or as they were; no file if there are none."""
    if not heads.arrays:
        return
    metadata = {"format": "mlx", **heads.metadata}
    if heads.packed:
        mx.save_safetensors(str(path), heads.arrays, metadata=metadata)
        return
    written: dict[str, mx.array] = {}
    for name, array in heads.arrays.items():
        if dtype is not None and mx.issubdtype(array.dtype, mx.floating) and EXACT.search(name) is None:
            array = array.astype(dtype)
        if wanted is None or not _is_matrix(name, array, wanted.group_size):
            written[name] = array
            continue
        parts = mx.quantize(array, group_size=wanted.group_size, bits=wanted.bits, mode=wanted.mode)
        stem = name.removesuffix(".weight")
        names = (name, f"{stem}.scales", f"{stem}.biases")
        written.update(zip(names, parts, strict=False))
    if wanted is not None:
        metadata |= {"bits": str(wanted.bits), "group_size": str(wanted.group_size), "mode": wanted.mode}
    mx.save_safetensors(str(path), written, metadata=metadata)


def _is_matrix(name: str, array: mx.array, group_size: int) -> bool:
    fits = array.ndim >= 2 and array.shape[-1] % group_size == 0 and mx.issubdtype(array.dtype, mx.floating)
    return fits and MATRIX.search(name) is not None and ROUTER.search(name) is None

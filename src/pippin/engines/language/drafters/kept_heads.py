"""Reads prediction heads as `pippin convert` keeps them: under the publisher's names and with its numbers, in full or
packed in few bits.

mlx-vlm takes a file that MLX wrote to have mlx-vlm's names and numbers (norms of Qwen 3.5 plus one, experts in one
array), and weights in it to be packed as its configuration says the model's are.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_vlm.speculative.drafters.mtp_split import MTPSplitter

from pippin.core.errands import DRAFT_HEADS, ROUTER
from pippin.core.safetensors import read_header

PACKING = ("scales", "biases")


def open_kept_head(folder: Path, splitter: MTPSplitter, config: Mapping[str, Any]) -> Any:
    """mlx-vlm's module for a head that a conversion kept, none of its weights evaluated. `splitter`: the one that reads
    the published checkpoint. Raises `ValueError`, `KeyError`, `TypeError` or `OSError` for what does not fit."""
    made = type(splitter)
    reader = type(f"Kept{made.__name__}", (KeptHead, made), {})()
    return reader.load(folder, lazy=True, source_config=dict(config))


def is_kept(folder: Path) -> bool:
    """Whether a conversion wrote the head in this folder. Raises `OSError`."""
    return "layout" in _metadata(folder)


def _metadata(folder: Path) -> dict[str, str]:
    path = folder / DRAFT_HEADS
    if not path.exists():
        return {}
    with path.open("rb") as file:
        header = read_header(file)
    return {} if header is None else header.metadata


class KeptHead(MTPSplitter):  # type: ignore[misc] # mlx-vlm has no types
    """What one of mlx-vlm's splitters does otherwise for a head that a conversion kept: weights are unpacked, put
    together as those of a published checkpoint are, and packed again."""

    def __init__(self) -> None:
        super().__init__()
        self._packing: dict[str, Any] = {}  # bits, size of groups and mode

    def prepare(self, source_path: Path, *, source_config: dict[str, Any], **given: Any) -> Any:
        metadata = _metadata(source_path)
        if metadata.get("layout") == "published":
            self.supports_mlx_source = False
        published = metadata.get("quantization_config")
        if published is not None:
            source_config = {**source_config, "quantization_config": json.loads(published)}
        return super().prepare(source_path, source_config=source_config, **given)

    def load_shard(self, file: Path, keys: list[str]) -> dict[str, mx.array]:
        loaded: Any = mx.load(str(file), return_metadata=True)
        arrays, metadata = loaded
        if "bits" not in metadata:
            found: dict[str, mx.array] = super().load_shard(file, keys)
            return found
        self._packing = {
            "group_size": int(metadata["group_size"]),
            "bits": int(metadata["bits"]),
            "mode": metadata["mode"],
        }
        names = [key for key in keys if key.rpartition(".")[2] not in PACKING]
        return {name: self._whole(arrays, name) for name in names}

    def _whole(self, arrays: Mapping[str, mx.array], name: str) -> mx.array:
        stem = name.removesuffix(".weight")
        scales, biases = (arrays.get(f"{stem}.{leaf}") for leaf in PACKING)
        if scales is None:
            return arrays[name]
        return mx.dequantize(arrays[name], scales, biases, **self._packing)

    def should_quantize_key(self, key: str) -> bool:
        return ROUTER.search(key) is None and bool(super().should_quantize_key(key))

    def quantization(
        self, tensors: dict[str, mx.array], source_config: Any, text_config: Any, quant_opts: Any
    ) -> dict[str, Any] | None:
        packing = self._packing
        found: dict[str, Any] | None = (
            self._quantize(tensors, packing["group_size"], packing["bits"], packing["mode"])
            if packing
            else super().quantization(tensors, source_config, text_config, quant_opts)
        )
        return found

"""Reads Inkling's blocks for multi-token prediction from a model's own checkpoint, as published or as a conversion kept
them: under the publisher's names, in full or packed in few bits.

mlx-vlm reads published ones alone: it asks for the model's last norm under its published name, which conversions
change, and takes files that MLX wrote to have mlx-vlm's names.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_vlm.speculative.drafters.inkling_mtp.split import InklingMTPSplitter

MODELS = ("inkling", "inkling_mm_model")
"""Types of the models that have such blocks, as their configurations name them."""

PREFIX = "model.mtp."
PACKING = ("scales", "biases")


def open_blocks(folder: Path, config: Mapping[str, Any]) -> Any:
    """mlx-vlm's module with its weights, none of them evaluated. Raises `ValueError`, `KeyError`, `TypeError` or
    `OSError` for what does not fit together."""
    return _Reader().load(folder, lazy=True, source_config=dict(config))


def has_blocks(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the checkpoint has any weights of blocks. Raises `OSError`."""
    reader = _Reader()
    return any(reader.iter_selected(folder, reader.read_text_config(dict(config))))


class _Reader(InklingMTPSplitter):  # type: ignore[misc] # mlx-vlm has no types
    supports_mlx_source = False

    def __init__(self) -> None:
        self._packing: dict[str, Any] = {}  # bits, size of groups and mode

    def select_keys(self, key: str, text_config: dict[str, Any]) -> bool:
        return key.startswith(PREFIX)

    def load_shard(self, file: Path, keys: list[str]) -> dict[str, mx.array]:
        """Whole arrays: blocks are put together of these, and packed again."""
        loaded: Any = mx.load(str(file), return_metadata=True)
        arrays, metadata = loaded
        if any(key.endswith(".scales") for key in keys):
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

    def rename(self, tensors: dict[str, mx.array], text_config: dict[str, Any]) -> dict[str, mx.array]:
        found: dict[str, mx.array] = super().rename(tensors, text_config)
        # Of the model's last norm, which nothing goes through here.
        found["norm.weight"] = mx.ones((text_config["hidden_size"],))
        return found

    def quantization(
        self, tensors: dict[str, mx.array], source_config: Any, text_config: Any, quant_opts: Any
    ) -> dict[str, Any] | None:
        if not self._packing:
            return None
        packing = self._packing
        found: dict[str, Any] | None = self._quantize(
            tensors, packing["group_size"], packing["bits"], packing["mode"]
        )
        return found

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

from pippin.engines.language.drafters.kept_heads import KeptHead

MODELS = ("inkling", "inkling_mm_model")
"""Types of the models that have such blocks, as their configurations name them."""

PREFIX = "model.mtp."


def open_blocks(folder: Path, config: Mapping[str, Any]) -> Any:
    """mlx-vlm's module with its weights, none of them evaluated. Raises `ValueError`, `KeyError`, `TypeError` or
    `OSError` for what does not fit together."""
    return _Reader().load(folder, lazy=True, source_config=dict(config))


def has_blocks(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the checkpoint has any weights of blocks. Raises `OSError`."""
    reader = _Reader()
    return any(reader.iter_selected(folder, reader.read_text_config(dict(config))))


class _Reader(KeptHead, InklingMTPSplitter):  # type: ignore[misc] # mlx-vlm has no types
    supports_mlx_source = False

    def select_keys(self, key: str, text_config: dict[str, Any]) -> bool:
        return key.startswith(PREFIX)

    def rename(self, tensors: dict[str, mx.array], text_config: dict[str, Any]) -> dict[str, mx.array]:
        found: dict[str, mx.array] = super().rename(tensors, text_config)
        # Of the model's last norm, which nothing goes through here.
        found["norm.weight"] = mx.ones((text_config["hidden_size"],))
        return found

"""Attention of both directions within a window, which EmbeddingGemma's local layers have and mlx-vlm leaves out."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn

FAR = -1e9
"""Not infinite: a row that is all padding would turn into NaN, and with it whatever sums over rows."""


class Windowed(nn.Module):  # type: ignore[misc]
    """A layer whose positions see those less than `window` away."""

    def __init__(self, layer: nn.Module, window: int) -> None:
        super().__init__()
        self.layer = layer
        self._window = window

    def __call__(self, states: mx.array, mask: mx.array, cache: Any = None) -> mx.array:
        """`states` [batch, length, width]; `mask` [batch, 1, length, length], added to scores, 0 where seen."""
        places = mx.arange(states.shape[1])
        near = mx.abs(places[:, None] - places[None]) < self._window
        seen: mx.array = self.layer(states, mx.where(near & (mask == 0), 0.0, FAR).astype(mask.dtype), cache)
        return seen


def restore_windows(model: nn.Module, config: dict[str, Any]) -> None:
    """Wrap the local layers. The window counts both sides, as transformers reads it."""
    size, pattern = config.get("sliding_window"), model.model.sliding_window_pattern
    if not config.get("use_bidirectional_attention") or not isinstance(size, int) or pattern < 2:
        return
    model.model.layers = [
        layer if place % pattern == pattern - 1 else Windowed(layer, size // 2 + 1)
        for place, layer in enumerate(model.model.layers)
    ]

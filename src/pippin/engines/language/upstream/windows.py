"""Windows of attention that a configuration names and the class of its architecture leaves out.

Most such classes make one mask for all layers, from the first layer's cache. A cache that keeps a window makes the mask
of a window, so models whose layers all have the same one need nothing else.
"""

from collections.abc import Collection, Mapping
from typing import Any

import mlx.nn as nn
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache

ALL_LAYERS = ("ministral3", "mistral", "mixtral", "phi3", "phimoe", "starcoder2")
"""Types of which `sliding_window` alone tells that every layer has one."""


TYPES = {"sliding_window", "layer_types"}


def complete(model: nn.Module, config: Mapping[str, Any], taken: Collection[str]) -> None:
    """Have a model attend within the window that its configuration names, where its class leaves that out.

    `taken` are the fields that the class takes. Raises `ValueError` where only some layers have a window.
    """
    size = config.get("sliding_window")
    chosen = windowed(config, len(model.layers))
    if (
        not isinstance(size, int)
        or size >= config.get("max_position_embeddings", size + 1)
        or not any(chosen)
    ):
        return
    own = make_prompt_cache(model)
    # Some classes have caches of windows, some make a mask of one for those types of layers.
    if any(isinstance(cache, RotatingKVCache) for cache in own) or (not all(chosen) and {*taken} >= TYPES):
        return
    if not all(chosen):
        count = f"{sum(chosen)} of {len(chosen)} layers"
        raise ValueError(f"sliding_window {size} of {count} is not read by the class of this architecture")
    model.make_cache = lambda: [RotatingKVCache(max_size=size) for _ in chosen]


def windowed(config: Mapping[str, Any], layers: int) -> list[bool]:
    """Which layers have a window."""
    if config.get("model_type") in ALL_LAYERS:
        return [True] * layers
    if not config.get("use_sliding_window", True):
        return [False] * layers
    if types := config.get("layer_types"):
        return [kind == "sliding_attention" for kind in types]
    first = config.get("max_window_layers", layers) if config.get("use_sliding_window") else layers
    return [place >= first for place in range(layers)]

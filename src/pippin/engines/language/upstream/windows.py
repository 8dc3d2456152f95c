"""Windows of attention that a configuration names and the class of its architecture leaves out.

Most such classes make one mask for all layers, from the first layer's cache. A cache that keeps a window makes the mask
of a window, so models whose layers all have the same one need nothing else.
"""

from collections.abc import Collection, Mapping
from typing import Any

import mlx.nn as nn
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from pippin.engines.language.configuration import fields_of, unread

ALL_LAYERS = ("ministral3", "mistral", "mixtral", "phi3", "phimoe", "qwen3_moe", "starcoder2")
"""Types of which `sliding_window` alone tells that every layer has one, if it is used."""


TYPES = {"sliding_window", "layer_types"}


def complete(model: nn.Module, config: Mapping[str, Any], taken: Collection[str]) -> None:
    """Have a model attend within the window that its configuration names, where its class leaves that out.

    `taken` are the fields that the class takes. Raises `ValueError` where only some layers have a window, and where the
    class has windows in other layers than `layer_types` says.
    """
    size = config.get("sliding_window")
    chosen = windowed(config, len(model.layers))
    own = make_prompt_cache(model)
    places = [isinstance(cache, RotatingKVCache) for cache in own]
    types = config.get("layer_types") or ()
    alike = bool(types) and {*types} <= {"sliding_attention", "full_attention"}
    if any(places) and alike and places != chosen[: len(places)]:
        raise unread(f"layer_types {types!r}")
    unbounded = not isinstance(size, int) or size >= config.get("max_position_embeddings", size + 1)
    if unbounded or any(places) or not any(chosen):
        return
    if not all(chosen) and {*taken} >= TYPES:
        # Such classes make a mask of a window for layers of that type. The kernels for CPUs go by the caches.
        if hasattr(getattr(model, "model", None), "swa_idx"):
            model.make_cache = lambda: [
                RotatingKVCache(max_size=size) if within else KVCache() for within in chosen
            ]
        return
    if not all(chosen):
        count = f"{sum(chosen)} of {len(chosen)} layers"
        raise unread(f"sliding_window {size} of {count}")
    model.make_cache = lambda: [RotatingKVCache(max_size=size) for _ in model.layers]


def windowed(config: Mapping[str, Any], layers: int) -> list[bool]:
    """Which layers have a window."""
    known = fields_of(config).defaults
    # transformers reads this field in some types alone.
    reads = not known or "use_sliding_window" in known
    if reads and not config.get("use_sliding_window", known.get("use_sliding_window", True)):
        return [False] * layers
    if config.get("model_type") in ALL_LAYERS:
        return [True] * layers
    if types := config.get("layer_types"):
        return [kind == "sliding_attention" for kind in types]
    first = config.get("max_window_layers", layers) if config.get("use_sliding_window") else layers
    return [place >= first for place in range(layers)]

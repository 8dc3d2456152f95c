"""PLaMo 3's windows: a prompt sees a window and one position more, and a cache of a window alone would lose that."""

from collections.abc import Mapping
from typing import Any

from mlx_lm.models.cache import KVCache, RotatingKVCache
from mlx_lm.models.plamo3 import Model

from pippin.engines.language.upstream.mends import Mend


def keep_what_is_seen(model: Model, config: Mapping[str, Any]) -> None:
    size = model.config.window_size + 1
    model.make_cache = lambda: [
        KVCache() if layer.full_attn else RotatingKVCache(max_size=size) for layer in model.layers
    ]


MENDS = (
    Mend(
        original=Model,
        why="the cache keeps one position less than the mask of a prompt shows",
        made=keep_what_is_seen,
    ),
)

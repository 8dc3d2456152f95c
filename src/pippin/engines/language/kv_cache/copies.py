"""Copies of caches, of any class: arrays are shared until one side writes into them, for MLX copies then."""

from copy import copy
from typing import Any

import mlx.core as mx

from pippin.engines.language.kv_cache.layout import leaves, regrouped
from pippin.engines.language.kv_cache.slots import PromptCache


def copied(cache: PromptCache) -> PromptCache:
    """A sequence's cache to go on with by itself."""
    return regrouped(cache, map(copy_of, leaves(cache)))


def copy_of(leaf: Any) -> Any:
    """One layer's cache, where that is no list of several."""
    # Not by `from_state`, which is not alike in all classes, and forgets in some what is not an array.
    found = copy(leaf)
    values = {name: _listed(value) for name, value in vars(leaf).items()}
    if hasattr(type(leaf), "step"):
        values.pop("step", None)  # the size of the prompt, by which a sequence does not grow
        vars(found).pop("step", None)
    vars(found).update(values)
    return found


def _listed(value: Any) -> Any:
    match value:
        case mx.array():
            return value[:] if value.ndim else value
        case list():
            return [_listed(item) for item in value]
        case tuple():
            return tuple(_listed(item) for item in value)
        case dict():
            return {name: _listed(item) for name, item in value.items()}
    return copy_of(value) if hasattr(value, "update_and_fetch") else value

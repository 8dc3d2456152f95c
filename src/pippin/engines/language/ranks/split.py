"""Splits a model over ranks: each holds a part of every layer, or some of the layers.

Layers are divided by mlx-lm's own `shard`. mlx-lm's pipelines are not used: few architectures have one, and they write
into mlx-lm's caches, where the engine has its own. Here every rank keeps the model's whole list of layers, so that
masks and caches are found where the model looks for them. An `Elsewhere` replaces each layer of another rank: it counts
tokens in the layer's cache and passes the hidden states on.
"""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from pippin.core.errors import ServerError
from pippin.engines.language.classes import Method, replace_method

HEADS = (
    "n_heads n_kv_heads num_heads num_kv_heads num_attention_heads num_key_value_heads num_k_heads num_v_heads"
).split()
"""What mlx-lm's attention and recurrent layers call the number of their heads."""


PIPELINES = "llama qwen3 qwen3_moe gpt_oss qwen3_5".split()
"""Modules of mlx-lm whose layers were tested to need only the hidden states from each other. Others may share more,
such as keys and values, and would silently answer wrongly."""


def split_within_layers(model: nn.Module, group: mx.distributed.Group) -> None:
    """Keep a part of every layer, its heads and columns, by mlx-lm's own `shard`. Raises `ServerError("load_failed")`
    for an architecture without one, or whose heads cannot be divided evenly."""
    shard = getattr(model, "shard", None)
    if shard is None:
        raise _refusal(model, "mlx-lm cannot split the layers of this architecture", "Take --split pipeline.")
    ranks = group.size()
    for name, count in _heads(model):
        if count % ranks:
            why = f"its layers have {count} heads ({name}), which {ranks} ranks cannot share evenly"
            raise _refusal(model, why, "Take another number of --ranks, or --split pipeline.")
    try:
        shard(group)
    except (ValueError, AssertionError, AttributeError, TypeError) as error:
        raise _refusal(model, str(error), "Take another number of --ranks, or --split pipeline.") from error


def _heads(model: nn.Module) -> Iterator[tuple[str, int]]:
    for _, module in model.named_modules():
        for name in HEADS:
            count = getattr(module, name, None)
            if isinstance(count, int):
                yield name, count


def _refusal(model: nn.Module, why: str, way_out: str) -> ServerError:
    name = getattr(model, "model_type", type(model).__module__.rpartition(".")[2])
    return ServerError(
        "load_failed", f"A model of type {name!r} cannot be split so: {why}. {way_out}", "split"
    )


class Placeholder(nn.Module):  # type: ignore[misc] # MLX has no types for it
    """Fills the cache of another rank's layer: one number for each token, or for each sequence, which nobody reads."""

    def __call__(self, x: mx.array, cache: Any) -> None:
        rows, tokens = x.shape[:2]
        if hasattr(cache, "update_and_fetch"):
            nothing = mx.zeros((rows, 1, tokens, 1), dtype=x.dtype)
            cache.update_and_fetch(nothing, nothing)
        elif cache is not None:
            for index in range(len(cache.cache)):
                cache[index] = mx.zeros((rows, 1, 1), dtype=x.dtype)
            cache.advance(tokens)


class Elsewhere(nn.Module):  # type: ignore[misc]
    """Stands in for a layer that another rank computes. It has the layer's attributes that models ask for."""

    def __init__(self, layer: nn.Module, passes: "Passes") -> None:
        super().__init__()
        # Attributes that are no weights (`is_linear`, `use_sliding` ...): models choose masks and caches by them.
        self.__dict__.update({name: value for name, value in vars(layer).items() if not name.startswith("_")})
        self.placeholder = Placeholder()
        self._passes = passes

    def __call__(self, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        given = [each for each in (*args, *kwargs.values()) if _is_cache(each)]
        for cache in given:
            self.placeholder(x, cache)
        return self._passes(x)


def _is_cache(value: Any) -> bool:
    return hasattr(value, "update_and_fetch") or isinstance(getattr(value, "cache", None), list)


class Passes:
    """Sends and receives the hidden states at one layer."""

    def __init__(
        self, group: mx.distributed.Group, *, sends: bool = False, receives: bool = False, ends: bool = False
    ) -> None:
        """`sends`: the layer before is this rank's last. `receives`: the next layer is this rank's first. `ends`: this
        is the last layer of all, whose result every rank needs."""
        self._group, self._sends, self._receives, self._ends = group, sends, receives, ends

    def __call__(self, x: mx.array) -> mx.array:
        rank = self._group.rank()
        if self._sends:
            x = mx.distributed.send(x, rank + 1, group=self._group)
        if self._receives:
            x = mx.distributed.recv_like(x, rank - 1, group=self._group)
        if self._ends:
            # The other ranks add zeros, which depend on what they have sent.
            x = x if rank == self._group.size() - 1 else mx.depends(mx.zeros_like(x), x)
            x = mx.distributed.all_sum(x, group=self._group)
        return x


def split_layers(model: nn.Module, group: mx.distributed.Group) -> None:
    """Keep some whole layers, the first ones on rank 0. Raises `ServerError("load_failed")`."""
    module = type(model).__module__.rpartition(".")[2]
    if module not in PIPELINES:
        why = f"pipelines are made of {', '.join(PIPELINES)} (names of mlx-lm), and this is {module}"
        raise _refusal(model, why, "Take --split tensor.")
    lists = [part["layers"] for _, part in model.named_modules() if isinstance(part.get("layers"), list)]
    rank, ranks = group.rank(), group.size()
    if len(lists) != 1:
        raise _refusal(model, "it has no single list of layers", "Take --split tensor.")
    [layers] = lists
    last = len(layers) - 1
    if len(layers) < ranks:
        raise _refusal(model, f"it has {len(layers)} layers", "Take fewer --ranks.")
    start, stop = (len(layers) * place // ranks for place in (rank, rank + 1))
    for index, layer in enumerate(layers):
        if start <= index < stop:
            continue
        passes = Passes(group, sends=index == stop, receives=index == start - 1, ends=index == last)
        layers[index] = Elsewhere(layer, passes)
    if stop == len(layers):
        _after(layers[last], Passes(group, ends=True))
    _after(model, evaluated)


def evaluated(logits: mx.array) -> mx.array:
    """Evaluate the results of a pass before anything else is built: a rank whose own results do not depend on what it
    sends would otherwise never compute what another rank waits for."""
    mx.eval(logits)
    return logits


def _after(module: nn.Module, then: Any) -> None:
    """Pass a module's results through `then`."""

    def followed(compute: Method) -> Method:
        return lambda self, *args, **kwargs: then(compute(self, *args, **kwargs))

    replace_method(module, "__call__", followed, mark="by_itself")

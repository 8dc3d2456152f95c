"""Splits a model over ranks, each of which holds a part of every layer."""

from collections.abc import Iterator

import mlx.core as mx
import mlx.nn as nn

from pippin.core.errors import ServerError

HEADS = (
    "n_heads n_kv_heads num_heads num_kv_heads num_attention_heads num_key_value_heads num_k_heads num_v_heads"
).split()
"""What mlx-lm's attention and recurrent layers call the number of their heads."""


def split_model(model: nn.Module, group: mx.distributed.Group) -> None:
    """Keep a part of every layer, its heads and columns, by mlx-lm's own `shard`. Raises `ServerError("load_failed")`
    for an architecture without one, or whose heads cannot be divided evenly."""
    shard = getattr(model, "shard", None)
    if shard is None:
        raise _refusal(
            model, "mlx-lm cannot split the layers of this architecture", "Start it on one machine."
        )
    ranks = group.size()
    for name, count in _heads(model):
        if count % ranks:
            why = f"its layers have {count} heads ({name}), which {ranks} ranks cannot share evenly"
            raise _refusal(model, why, "Take another number of --ranks.")
    try:
        shard(group)
    except (ValueError, AssertionError, AttributeError, TypeError) as error:
        raise _refusal(model, str(error), "Take another number of --ranks.") from error


def _heads(model: nn.Module) -> Iterator[tuple[str, int]]:
    for _, module in model.named_modules():
        for name in HEADS:
            count = getattr(module, name, None)
            if isinstance(count, int):
                yield name, count


def _refusal(model: nn.Module, why: str, way_out: str) -> ServerError:
    name = getattr(model, "model_type", type(model).__module__.rpartition(".")[2])
    return ServerError(
        "load_failed", f"A model of type {name!r} cannot be split so: {why}. {way_out}", "ranks"
    )

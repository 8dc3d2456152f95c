"""Ranks on the machines of a Ray cluster: the places that Ray holds for a group, and how many ranks a model needs."""

from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.published import object_in
from pippin.runtime.cluster.asking import asked, ended
from pippin.runtime.cluster.commands import in_the_cluster
from pippin.runtime.cluster.needs import Need, Node, Places
from pippin.runtime.ranks.places import far, group_of, of_rank, refuse_public

MOST: Final = 64  # ranks in a group
EACH: Final = 200 << 20  # bytes of Python, libraries and tokenizer, which each rank needs for itself
HEADS: Final = "num_attention_heads num_key_value_heads linear_num_key_heads linear_num_value_heads".split()
"""Configuration keys of counts that the ranks must divide evenly."""


class Held:
    """The places of a group, and the process that holds them. When that process ends, Ray ends whatever runs there."""

    def __init__(self, places: Places, need: Need, process: Process) -> None:
        self.places = places
        self.need = need
        self._process = process

    @classmethod
    async def open(cls, spec: WorkerSpec) -> "Held":
        """Have Ray hold places for all ranks. Raises `ServerError("load_failed")` if there are none."""
        options = convert(spec.options, ModelOptions)
        need = need_of_each(spec, options, options.ranks)
        words = (options.cluster or "", str(options.ranks), *need.words())
        places, process = await asked(spec.info, Places, *words)
        try:
            refuse_public(list(places.addresses), options)
        except ServerError:
            await ended(process)
            raise
        return cls(places, need, process)

    async def give_back(self) -> None:
        await ended(self._process)


def members_in_cluster(spec: WorkerSpec, held: Held) -> list[WorkerSpec]:
    """The spec of each rank. Raises `ServerError("load_failed")`."""
    options = convert(spec.options, ModelOptions)
    addresses = held.places.addresses
    # Two Ray nodes may be one machine, so all ports of a group differ.
    control, coordinator, *ports = far(len(addresses) + 2)
    hosts = [f"{address}:{port}" for address, port in zip(addresses, ports, strict=True)]
    first = addresses[0]
    group = group_of(options, hosts, f"{first}:{control}", f"{first}:{coordinator}")
    bound = None if options.memory_bytes is None else options.memory_bytes // len(group)
    shared = msgspec.structs.replace(spec, options={**spec.options, "memory_bytes": bound})
    return [
        in_the_cluster(
            of_rank(shared, rank),
            options.cluster or "",
            held.need,
            machine=address,
            seat=(held.places.group, rank.rank),
        )
        for rank, address in zip(group, addresses, strict=True)
    ]


def need_of_each(spec: WorkerSpec, options: ModelOptions, ranks: int) -> Need:
    """What each of `ranks` ranks needs, or a worker that computes the model alone; more if the operator's limit is
    higher. Ranks without a limit have a machine each."""
    if ranks == 1:
        return Need(max(spec.expected_bytes, options.memory_bytes or 0), "shared")
    weights = max(spec.expected_in_ranks - EACH, 0) // ranks + EACH
    if options.memory_bytes is None:
        return Need(weights, "whole")
    return Need(max(weights, options.memory_bytes // ranks), "shared")


def ranks_needed(spec: WorkerSpec, options: ModelOptions, nodes: Sequence[Node]) -> int:
    """The least number of ranks with which these machines can hold the model; 1 if one machine can hold it, or if no
    split fits."""
    if spec.info.kind != "language":
        return 1
    memories = [node.memory for node in nodes]
    needs = partial(need_of_each, spec, options)
    # If no fitting number of ranks divides the model, the ranks themselves report that, and which numbers would.
    found = least_ranks(memories, needs, shares_evenly(spec.info)) or least_ranks(
        memories, needs, lambda _: True
    )
    return found or 1


def least_ranks(
    memories: Sequence[int], needs: Callable[[int], Need], divides: Callable[[int], bool]
) -> int | None:
    """The least number of ranks that machines with these bytes of memory can hold; None if no number fits.

    `needs` gives the need of each rank for a number of ranks; `divides` says whether the model can be split that
    way."""
    for ranks in range(1, MOST + 1):
        need = needs(ranks)
        rooms = [memory // max(1, need.memory) for memory in memories]
        room = sum(min(each, 1) for each in rooms) if need.share == "whole" else sum(rooms)
        if room >= ranks and divides(ranks):
            return ranks
    return None


def shares_evenly(info: ModelInfo) -> Callable[[int], bool]:
    """Returns whether a number of ranks divides the model's heads evenly, as far as its configuration tells."""
    config = object_in(Path(info.path or "") / "config.json")
    inner = config.get("text_config")
    config = {**config, **inner} if isinstance(inner, dict) else config
    heads = [count for name in HEADS if isinstance(count := config.get(name), int)]
    return lambda ranks: all(count % ranks == 0 for count in heads)

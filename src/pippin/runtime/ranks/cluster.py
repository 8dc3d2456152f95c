"""Ranks on the machines of a Ray cluster: the places that Ray holds for a group, and what each rank needs."""

from asyncio.subprocess import Process
from dataclasses import dataclass
from typing import Final

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec
from pippin.core.processes import ended
from pippin.runtime.cluster.asking import asked
from pippin.runtime.cluster.needs import Need, Places, in_the_cluster
from pippin.runtime.ranks.places import far, group_of, refuse_public

EACH: Final = 200 << 20  # bytes of Python, libraries and tokenizer, which each rank needs for itself


@dataclass(frozen=True)
class Held:
    """The places of a group, and the process that holds them. When that process ends, Ray ends whatever runs there."""

    places: Places
    need: Need
    process: Process

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
        await ended(self.process)


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
            msgspec.structs.replace(shared, rank=rank),
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
    weights = max(spec.expected_bytes - EACH, 0) // ranks + EACH
    if options.memory_bytes is None:
        return Need(weights, "whole")
    return Need(max(weights, options.memory_bytes // ranks), "shared")

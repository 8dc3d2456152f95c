"""Where the ranks of a group run, on machines that the operator named or that Ray holds, and the spec of each."""

import secrets
import socket
from asyncio.subprocess import Process
from contextlib import ExitStack
from ipaddress import ip_address
from typing import Final

import msgspec
from msgspec import Struct

from pippin.config.options.model import ModelOptions, is_here, machines_of, ranks_here
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.models import RankSpec, WorkerSpec
from pippin.core.processes import ended
from pippin.runtime.cluster.asking import asked
from pippin.runtime.cluster.needs import Need, Places, in_the_cluster
from pippin.runtime.workers.machines import elsewhere, shared_out

FAR_PORTS: Final = range(20_000, 30_000)
"""Ranks on another machine listen on random ports of this range, from which systems assign no outgoing connections."""


def members(spec: WorkerSpec) -> list[WorkerSpec]:
    """The spec of each rank; those on this machine share the memory and threads of `spec`. Raises `ServerError`."""
    options = convert(spec.options, ModelOptions)
    machines = machines_of(options)
    here = ranks_here(options)
    shared = shared_out(spec, here)
    return [
        msgspec.structs.replace(shared, rank=rank)
        if is_here(machine, machines[0])
        else elsewhere(msgspec.structs.replace(spec, rank=rank), machine, options)
        for rank, machine in zip(places(spec), machines, strict=True)
    ]


def places(spec: WorkerSpec) -> list[RankSpec]:
    """The places of a model's ranks. Raises `ServerError("load_failed")` for machines that cannot be used."""
    options = convert(spec.options, ModelOptions)
    machines = machines_of(options)
    if options.machines and options.ranks not in (1, len(machines)):
        message = f"{options.ranks} ranks and {len(machines)} machines were asked for: leave out --ranks."
        raise ServerError("load_failed", message, "ranks")
    first, *others = [address_of(machine) for machine in machines]
    refuse_public([first, *others], options)
    near = [is_here(machine, machines[0]) for machine in machines]
    own_ports, far_ports = free_ports(first, near.count(True) + 2), far(near.count(False))
    hosts = [
        f"{first}:{own_ports.pop()}" if here else f"{address}:{far_ports.pop()}"
        for address, here in zip([first, *others], near, strict=True)
    ]
    return group_of(options, hosts, f"{first}:{own_ports[0]}", f"{first}:{own_ports[1]}")


def group_of(options: ModelOptions, hosts: list[str], control: str, coordinator: str) -> list[RankSpec]:
    """The place of each rank in a new group with these HOST:PORTs."""
    secret = secrets.token_hex(32)
    return [
        RankSpec(
            rank=rank,
            size=len(hosts),
            backend=options.rank_backend,
            control=control,
            coordinator=coordinator,
            hosts=tuple(hosts),
            secret=secret,
        )
        for rank in range(len(hosts))
    ]


def far(count: int) -> list[int]:
    """Distinct ports for ranks on machines whose free ports are not known here."""
    return secrets.SystemRandom().sample(FAR_PORTS, count)


def refuse_public(addresses: list[str], options: ModelOptions) -> None:
    """Raises `ServerError("load_failed")` for public internet addresses, unless the operator allows them."""
    public = sorted({each for each in addresses if ip_address(each).is_global})
    if public and options.rank_network == "private":
        message = (
            f"What ranks send each other is not encrypted, and {', '.join(public)} is an address of the public "
            "internet: put the machines into a private network, such as a WireGuard tunnel, and name their addresses "
            "there, or allow it by --rank-network any."
        )
        raise ServerError("load_failed", message, "rank_network")


def address_of(machine: str) -> str:
    """The IPv4 address of `HOST` or `USER@HOST`. Raises `ServerError("load_failed")`."""
    host = machine.rpartition("@")[2]
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        message = f"The machine {host!r} has no address that is known here: {error.strerror}."
        raise ServerError("load_failed", message, "machines") from error


def free_ports(host: str, count: int) -> list[int]:
    """Ports on which nobody on this machine listens now. Raises `ServerError("load_failed")`."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        try:
            for each in sockets:
                each.bind((host, 0))
        except OSError as error:
            message = f"The first of --machines must be this machine's own address, and {host} is not."
            raise ServerError("load_failed", message, "machines") from error
        return [each.getsockname()[1] for each in sockets]


EACH: Final = 200 << 20  # bytes of Python, libraries and tokenizer, which each rank needs for itself


class Held(Struct, frozen=True):
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

"""Ranks on the machines of a Ray cluster: the places that Ray holds for a group, and how many ranks a model needs."""

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.decoding import convert, from_json
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.runtime.cluster.commands import in_the_cluster, placement
from pippin.runtime.cluster.needs import Need, Node, Places, Refused
from pippin.runtime.ranks.places import far, group_of, of_rank, refuse_public

ANSWER_WITHIN: Final = 90.0  # seconds: Ray looks for room for 60 of them
LAST_WORDS: Final = 5.0  # seconds for a refused process to end
MOST: Final = 64  # ranks in a group
EACH: Final = 200 << 20  # bytes of Python, libraries and tokenizer, which each rank needs for itself
HEADS: Final = "num_attention_heads num_key_value_heads linear_num_key_heads linear_num_value_heads".split()
"""Configuration keys of counts that the ranks of `--split tensor` must divide evenly."""

T = TypeVar("T")


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


async def asked(info: ModelInfo, kind: type[T], *words: str) -> tuple[T, Process]:
    """The cluster's answer, and the process that asked for it. Raises `ServerError("load_failed")`."""
    process = await asyncio.create_subprocess_exec(
        *placement(*words), stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), ANSWER_WITHIN)
        answer = answer_of(line, kind)
        if answer is None:
            said = answer_of(line, Refused)
            why = await asyncio.wait_for(process.stderr.read(), LAST_WORDS) if said is None else said.refused
            raise refusal(info, why)
    except TimeoutError:
        await ended(process)
        raise refusal(info, "It did not answer.") from None
    except BaseException:
        await ended(process)
        raise
    return answer, process


async def ended(process: Process) -> None:
    """End a process that asked the cluster; Ray frees whatever it holds."""
    with suppress(ProcessLookupError):
        process.kill()
    await asyncio.shield(process.communicate())  # drain its pipes, which asyncio waits for


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
    higher."""
    weights = spec.expected_bytes
    if ranks > 1:
        weights = max(spec.expected_in_ranks - EACH, 0) // ranks + EACH
    if options.memory_bytes is None:
        return Need(weights, "whole")
    return Need(max(weights, options.memory_bytes // ranks), "shared")


async def ranks_needed(spec: WorkerSpec, options: ModelOptions) -> int:
    """The least number of ranks with which the cluster can hold the model; 1 if one machine can hold it, or if no split
    fits. Raises `ServerError("load_failed")` if the cluster does not answer."""
    if spec.info.kind != "language":
        return 1
    nodes, process = await asked(spec.info, list[Node], options.cluster or "")
    await ended(process)
    memories = [node.memory for node in nodes]
    divides = shares_evenly(spec.info) if options.split == "tensor" else _any
    needs = partial(need_of_each, spec, options)
    # If no fitting number of ranks divides the model, the ranks themselves report that, and which numbers would.
    return least_ranks(memories, needs, divides) or least_ranks(memories, needs, _any) or 1


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


def _any(ranks: int) -> bool:
    return True


def shares_evenly(info: ModelInfo) -> Callable[[int], bool]:
    """Returns whether a number of ranks divides the model's heads evenly, as far as its configuration tells."""
    config: dict[str, Any] = {}
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads((Path(info.path or "") / "config.json").read_bytes())
        config = found if isinstance(found, dict) else {}
    inner = config.get("text_config")
    config = {**config, **inner} if isinstance(inner, dict) else config
    heads = [count for name in HEADS if isinstance(count := config.get(name), int)]
    return lambda ranks: all(count % ranks == 0 for count in heads)


def answer_of(line: bytes, kind: type[T]) -> T | None:
    try:
        return from_json(line, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def refusal(info: ModelInfo, said: str | bytes) -> ServerError:
    """`said` is a sentence, or the output of a process that gave no answer, whose last line may tell why."""
    if isinstance(said, bytes):
        lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
        said = lines[-1] if lines else "the process that asks it ended without a word."
    return ServerError("load_failed", f"The cluster cannot run {info.id!r}: {said}")

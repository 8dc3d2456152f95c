"""Holds places for a group of ranks on machines of a Ray cluster for as long as this process lives.

Run as `python -m` this module with the cluster's address, the number of ranks, the bytes that each needs, and `shared`
or `whole`. It prints `Places` as a line of JSON and ends with its input; Ray then frees the places and ends everything
that runs there. With the address alone it prints the cluster's `Node`s and ends. On failure it prints `Refused`
instead.
"""

import os
import secrets
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from pippin.config.cluster import MACHINE
from pippin.runtime.cluster.bridge import NOT_REACHED, PLACE_WITHIN, NotPlaced, joined, silence
from pippin.runtime.cluster.needs import Need, Node, Places, Refused


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    address, *asked = arguments
    answer = os.dup(1)
    silence(1)
    try:
        ray = joined(address)
        if not asked:
            _print(answer, nodes(ray))
            return 0
        ranks, memory, share = asked
        _print(answer, placed(ray, int(ranks), Need.of(memory, share)))
    except NotPlaced as error:  # on stderr Ray's own output would surround the message
        _print(answer, Refused(str(error)))
        return NOT_REACHED
    silence(2)  # the server stops reading it, and writers must not block
    sys.stdin.buffer.read()  # until the server releases the places or ends
    return 0


def nodes(ray: Any) -> list[Node]:
    """The machines on which workers may run."""
    known = MACHINE in ray.cluster_resources()
    return [
        Node(str(each["NodeManagerAddress"]), int(each["Resources"].get("memory", 0)))
        for each in ray.nodes()
        if each["Alive"] and (each["Resources"].get(MACHINE) or not known)
    ]


def placed(ray: Any, ranks: int, need: Need) -> Places:
    """Reserve what each rank needs: on as few machines as possible, or on one machine each. Raises `NotPlaced`."""
    name = f"pippin-{secrets.token_hex(8)}"
    bundle = need.resources(ray.cluster_resources())
    strategy = "PACK" if need.share == "shared" else "STRICT_SPREAD"
    group = ray.util.placement_group([bundle] * ranks, strategy=strategy, name=name)
    if not group.wait(PLACE_WITHIN):
        machines = f"{ranks} machines that have each" if need.share == "whole" else f"{ranks} times"
        raise NotPlaced(
            f"The cluster has not {machines} {need}. `ray status` shows what is taken; `pippin join` on another "
            "machine adds it."
        )
    where = ray.util.placement_group_table(group)["bundles_to_node_id"]
    addresses = {each["NodeID"]: str(each["NodeManagerAddress"]) for each in ray.nodes()}
    return Places(name, tuple(addresses[where[number]] for number in range(ranks)))


def _print(output: int, value: object) -> None:
    with os.fdopen(output, "wb") as file:
        file.write(msgspec.json.encode(value) + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

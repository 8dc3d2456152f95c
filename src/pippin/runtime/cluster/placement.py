"""Holds places for a group of ranks on machines of a Ray cluster for as long as this process lives.

Run as `python -m` this module with the cluster's address, the number of ranks, the bytes that each needs, and `shared`
or `whole`. It prints `Places` as a line of JSON and ends with its input; Ray then frees the places and ends everything
that runs there. With the address alone it prints the `Cluster` and ends, unless the address is `auto` and there is no
cluster: then it begins one on this machine, which ends with its input too. On failure it prints `Refused` instead.
"""

import os
import secrets
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from pippin.config.cluster import MACHINE, OBJECTS, memory_here
from pippin.runtime.cluster.bridge import NOT_REACHED, NoCluster, NotPlaced, first_line, joined, silence
from pippin.runtime.cluster.needs import PLACE_WITHIN, Cluster, Need, Node, Places, Refused


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    address, *asked = arguments
    answer = os.dup(1)
    silence(1)
    try:
        if asked:
            ranks, memory, share = asked
            _print(answer, placed(joined(address), int(ranks), Need.of(memory, share)))
        else:
            found = cluster(address)
            _print(answer, found)
            if not found.begun:
                return 0
    except NotPlaced as error:  # on stderr Ray's own output would surround the message
        _print(answer, Refused(str(error)))
        return NOT_REACHED
    silence(2)  # the server stops reading it, and writers must not block
    sys.stdin.buffer.read()  # until the server releases the places or ends
    return 0


def cluster(address: str) -> Cluster:
    """The cluster, begun on this machine if the address is `auto` and there is none. Raises `NotPlaced`."""
    try:
        ray, begun = joined(address), False
    except NoCluster:
        if address != "auto":
            raise
        ray, begun = started(), True
    return Cluster(ray.get_runtime_context().gcs_address, nodes(ray), begun)


def started() -> Any:
    """Ray, with a new cluster that is this machine alone, and ends with this process. Raises `NotPlaced`."""
    import ray

    try:
        ray.init(
            address="local",
            namespace="pippin",
            log_to_driver=False,
            logging_level="WARNING",
            include_dashboard=False,
            resources={MACHINE: 1},
            object_store_memory=OBJECTS,
            _memory=memory_here(),
        )
    except Exception as error:  # of Ray's, which has no class for it
        raise NotPlaced(f"Ray does not start on this machine: {first_line(error)}") from error
    return ray


def nodes(ray: Any) -> tuple[Node, ...]:
    """The machines on which workers may run."""
    known = MACHINE in ray.cluster_resources()
    return tuple(
        Node(str(each["NodeManagerAddress"]), int(each["Resources"].get("memory", 0)))
        for each in ray.nodes()
        if each["Alive"] and (each["Resources"].get(MACHINE) or not known)
    )


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

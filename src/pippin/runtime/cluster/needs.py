"""What a worker needs from a machine of the cluster, as resources for Ray, and the commands that start it there."""

import shlex
import sys
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from pippin.config.cluster import MACHINE
from pippin.core.models import WorkerSpec
from pippin.runtime.workers.machines import reached_by

BRIDGE: Final = "pippin.runtime.cluster.bridge"
PLACE_WITHIN: Final = 60.0  # seconds for Ray to find a machine and start a process there
CLUSTER: Final = "the cluster"
"""Names the location of a worker that Ray has yet to place."""


Share = Literal["shared", "whole"]
"""Whether others may run on the worker's machine, or the worker has the machine to itself."""
PART: Final = 0.001  # of a machine and of its processors, for a worker that shares them


class Node(Struct, frozen=True):
    """A machine of the cluster."""

    address: str
    memory: int  # bytes for workers, free or not


class Cluster(Struct, frozen=True):
    """A cluster that answers."""

    address: str  # HOST:PORT
    nodes: tuple[Node, ...]
    begun: bool = False  # by the process that tells of it, and ends with it


class Places(Struct, frozen=True):
    """The places that Ray holds for a group of ranks until the process that asked for them ends."""

    group: str  # the name of Ray's placement group
    addresses: tuple[str, ...]  # of each rank's machine; may repeat


class Refused(Struct, frozen=True):
    """Sent instead of an answer."""

    refused: str  # a sentence


class Need(Struct, frozen=True):
    """What one worker, or one rank, needs from a machine."""

    memory: int  # bytes
    share: Share

    def resources(self, known: Mapping[str, float]) -> dict[str, float]:
        """The amounts under Ray's resource names; `known` are the cluster's resources."""
        part = 1.0 if self.share == "whole" else PART
        wanted: dict[str, float] = {"CPU": part, "memory": self.memory}
        # A cluster that `pippin join` did not make lacks this resource; Ray then counts memory and processors only.
        if MACHINE in known:
            wanted[MACHINE] = part
        if known.get("GPU"):  # Ray hides GPUs from actors that request none
            wanted["GPU"] = 1
        return wanted

    def words(self) -> tuple[str, str]:
        """The command-line arguments that `of` reads."""
        return str(self.memory), self.share

    @classmethod
    def of(cls, memory: str, share: str) -> "Need":
        return cls(int(memory), "shared" if share == "shared" else "whole")

    def __str__(self) -> str:
        alone = "" if self.share == "shared" else " and no other worker (--memory-bytes lets them share)"
        return f"{self.memory / (1 << 30):.1f} GiB of memory free{alone}"


def in_the_cluster(
    spec: WorkerSpec,
    cluster: str,
    need: Need,
    *,
    machine: str = CLUSTER,
    seat: tuple[str, int] | None = None,
    within: float = PLACE_WITHIN,
) -> WorkerSpec:
    """The spec of a worker that Ray places where `need` is free, or becomes free `within` so many seconds. For a rank:
    at the `seat` (name and number) of its group, which is on `machine`. Raises `ServerError`."""
    wanted = (*need.words(), str(within))
    words = (sys.executable, "-m", BRIDGE, cluster, *wanted, spec.info.id, spec.info.path or "")
    place = () if seat is None else (seat[0], str(seat[1]))
    return reached_by(shlex.join((*words, *place)), spec, machine)

"""The programs through which the server uses a cluster; the server itself does not import Ray."""

import shlex
import sys
from typing import Final

from pippin.core.models import WorkerSpec
from pippin.runtime.cluster.needs import Need
from pippin.runtime.workers.machines import reached_by

BRIDGE: Final = "pippin.runtime.cluster.bridge"
PLACEMENT: Final = "pippin.runtime.cluster.placement"
PLACE_WITHIN: Final = 60.0  # seconds for Ray to find a machine and start a process there
CLUSTER: Final = "the cluster"
"""Names the location of a worker that Ray has yet to place."""


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


def placement(*words: str) -> tuple[str, ...]:
    """The command that passes `words` to the cluster."""
    return (sys.executable, "-m", PLACEMENT, *words)

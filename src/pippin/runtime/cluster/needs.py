"""What a worker needs of a machine of the cluster, and how Ray is asked for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from msgspec import Struct

from pippin.config.cluster import MACHINE

Share = Literal["shared", "whole"]
"""Whether others may run on the worker's machine, or it has the machine for itself."""
PART: Final = 0.001  # of a machine, for a worker that leaves room for others


class Node(Struct, frozen=True):
    """A machine of the cluster."""

    address: str
    memory: int  # bytes that workers may take there, whether free or not


class Places(Struct, frozen=True):
    """What Ray holds for a group of ranks until the process that asked for it ends."""

    group: str  # the name of Ray's placement group
    addresses: tuple[str, ...]  # of the machine of each rank; one may be there more than once


class Refused(Struct, frozen=True):
    """In place of an answer."""

    refused: str  # a sentence


@dataclass(frozen=True)
class Need:
    """What one worker, or one rank, needs of a machine."""

    memory: int  # bytes
    share: Share

    def resources(self, known: Mapping[str, float]) -> dict[str, float]:
        """Amounts by the names of Ray's resources; `known` are those of the cluster."""
        wanted: dict[str, float] = {"CPU": 1, "memory": self.memory}
        # A cluster that was not made by `pippin join` has no such resource, and Ray counts memory and processors alone.
        if MACHINE in known:
            wanted[MACHINE] = 1.0 if self.share == "whole" else PART
        if known.get("GPU"):  # Ray hides a machine's GPUs from whoever asks for none
            wanted["GPU"] = 1
        return wanted

    def words(self) -> tuple[str, str]:
        """As arguments of a command; `of` reads them."""
        return str(self.memory), self.share

    @classmethod
    def of(cls, memory: str, share: str) -> "Need":
        return cls(int(memory), "shared" if share == "shared" else "whole")

    def __str__(self) -> str:
        alone = (
            ""
            if self.share == "shared"
            else ", and no other replica (bound them with --memory-bytes to share)"
        )
        return f"{self.memory / (1 << 30):.1f} GiB of memory and a processor free{alone}"

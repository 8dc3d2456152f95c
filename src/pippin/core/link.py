"""What crosses the socket between the API server and a worker.

A frame is four bytes of length (unsigned, big-endian) and that many bytes of msgpack: an `Order` towards the
worker, a `Report` from it.
"""

from collections.abc import Iterator
from typing import Any, Final, Literal

from msgspec import Struct, field

from pippin.core.errors import ErrorReport
from pippin.core.events import Event
from pippin.core.models import EngineStats, ModelInfo
from pippin.core.tasks import Task

STEP_FAILED: Final = 70
"""Exit status of a worker whose engine raised in a step."""
LOAD_FAILED: Final = 71
GROUP_LOST: Final = 72
"""Exit status of a rank that has lost another rank of its group."""


class LoadWeights(Struct, frozen=True, tag=True, omit_defaults=True):
    """The memory is free: until this comes, a worker takes none for its model."""

    memory_bytes: int | None = None  # the most that weights and caches may take


class Submit(Struct, frozen=True, tag=True):
    id: str
    task: Task


class Cancel(Struct, frozen=True, tag=True):
    id: str


class ClearCache(Struct, frozen=True, tag=True, omit_defaults=True):
    prefixes_only: bool = False
    disk: bool = False


class Reconfigure(Struct, frozen=True, tag=True):
    """Options that may change without a restart, as a part of `ModelOptions` in builtins."""

    options: dict[str, Any]


class AskStats(Struct, frozen=True, tag=True):
    pass


class Shutdown(Struct, frozen=True, tag=True):
    """Finish what runs within `deadline` seconds, then leave."""

    deadline: float = 0.0


Order = LoadWeights | Submit | Cancel | ClearCache | Reconfigure | AskStats | Shutdown


class Output(Struct, frozen=True, tag=True):
    """The events of all requests in one step of the engine."""

    events: list[tuple[str, Event]] = field(default_factory=list)


class Stage(Struct, frozen=True, tag=True, omit_defaults=True):
    """The worker got further: `prompt` (tokenizer and template are there), then `weights`."""

    stage: Literal["prompt", "weights"]
    info: ModelInfo
    seconds: float = 0.0
    footprint: int = 0  # bytes resident


class Loading(Struct, frozen=True, tag=True):
    done: int
    total: int
    message: str


class LoadFailed(Struct, frozen=True, tag=True):
    error: ErrorReport


class Stats(Struct, frozen=True, tag=True):
    stats: EngineStats


Report = Output | Stage | Loading | LoadFailed | Stats


SERIAL_MARK: Final = "#"
"""Stands in the id of a request on the wire before its serial number. Where several API processes share a worker, the
serial number of a guest's request has the guest's own number and a point before it."""
GUEST_BYTES: Final = 8
"""A guest's number, big-endian, as it comes through a worker's door together with the guest's socket."""


def request_id(wire_id: str) -> str:
    """The request's id of an id on the wire, which has a serial number behind it."""
    return wire_id.rpartition(SERIAL_MARK)[0]


def guest_of(wire_id: str) -> str:
    """The number of the guest whose request it is; empty for one of the worker's owner."""
    return wire_id.rpartition(SERIAL_MARK)[2].rpartition(".")[0]


HEADER: Final = 4
LARGEST: Final = 1 << 30  # bytes; more than any request's media, less than what a corrupt length claims


class FrameError(Exception):
    """The stream does not hold frames; nothing after this point can be trusted."""


def frame(payload: bytes) -> bytes:
    """A payload with its length before it. Raises `FrameError` for one that is too large."""
    return header(payload) + payload


def header(payload: bytes) -> bytes:
    """The length of a payload, as it stands before it. Raises `FrameError` for one that is too large."""
    if len(payload) > LARGEST:
        raise FrameError(f"A frame of {len(payload)} bytes is larger than the limit of {LARGEST}.")
    return len(payload).to_bytes(HEADER, "big")


class FrameBuffer:
    """Gathers bytes as they come and gives whole frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add bytes; yields the payload of each frame that is now complete. Raises `FrameError`."""
        self._bytes += data
        position = 0
        try:
            while len(self._bytes) - position >= HEADER:
                length = int.from_bytes(self._bytes[position : position + HEADER], "big")
                if length > LARGEST:
                    raise FrameError(f"A frame claims {length} bytes, more than the limit of {LARGEST}.")
                end = position + HEADER + length
                if len(self._bytes) < end:
                    break
                payload = bytes(memoryview(self._bytes)[position + HEADER : end])
                position = end
                yield payload
        finally:
            del self._bytes[:position]

    @property
    def partial(self) -> bool:
        """Whether the buffer holds the beginning of an incomplete frame."""
        return bool(self._bytes)


# Several links in one stream: to a worker on another machine, where more than one API process speaks to it. A parcel is
# whose link it is of (a guest's number, or that of the owner), a length (four bytes, big-endian) and so many bytes of
# that link; no bytes mean that the link has ended.

PARCELS: Final = b"\xff\xff\xff\xff"
"""The beginning of such a stream, as no frame begins: the worker tells it from the link of a single API process."""
OWNER: Final = 0
"""In place of a guest's number, which are counted from 1."""
PARCEL_HEADER: Final = GUEST_BYTES + 4
LARGEST_PARCEL: Final = 1 << 20  # bytes


def parcel(whose: int, data: bytes) -> bytes:
    """At most `LARGEST_PARCEL` bytes of a link, or its end."""
    return whose.to_bytes(GUEST_BYTES, "big") + len(data).to_bytes(4, "big") + data


class ParcelBuffer:
    """Gathers bytes as they come and gives whole parcels."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Add bytes; yields whose each parcel is that is now complete, and what is in it. Raises `FrameError`."""
        self._bytes += data
        position = 0
        try:
            while len(self._bytes) - position >= PARCEL_HEADER:
                begin = position + PARCEL_HEADER
                length = int.from_bytes(self._bytes[begin - 4 : begin], "big")
                if length > LARGEST_PARCEL:
                    raise FrameError(
                        f"A parcel claims {length} bytes, more than the limit of {LARGEST_PARCEL}."
                    )
                if len(self._bytes) < begin + length:
                    break
                whose = int.from_bytes(self._bytes[position : position + GUEST_BYTES], "big")
                content = bytes(memoryview(self._bytes)[begin : begin + length])
                position = begin + length
                yield whose, content
        finally:
            del self._bytes[:position]

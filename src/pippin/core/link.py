"""The messages on the socket between the API server and a worker.

A frame is a length (four bytes, unsigned, big-endian) and that many bytes of msgpack: an `Order` to the worker, or a
`Report` from it.
"""

from collections.abc import Iterator
from typing import Any, Final, Literal

from msgspec import Struct, field

from pippin.core.errors import ErrorReport
from pippin.core.events import Event, PartDelta
from pippin.core.models import EngineStats, ModelInfo
from pippin.core.tasks import Task

STEP_FAILED: Final = 70
"""Exit status of a worker whose engine raised in a step."""
LOAD_FAILED: Final = 71
GROUP_LOST: Final = 72
"""Exit status of a rank that has lost another rank of its group."""


class LoadWeights(Struct, frozen=True, tag=True, omit_defaults=True):
    """Memory for the model is free; until this order comes, the worker allocates none for it."""

    memory_bytes: int | None = None  # limit for weights and caches together


class Submit(Struct, frozen=True, tag=True):
    id: str
    task: Task


class Cancel(Struct, frozen=True, tag=True):
    id: str


class ClearCache(Struct, frozen=True, tag=True, omit_defaults=True):
    prefixes_only: bool = False
    disk: bool = False


class Reconfigure(Struct, frozen=True, tag=True):
    """Options that may change without a restart: a subset of `ModelOptions` as builtins."""

    options: dict[str, Any]


class AskStats(Struct, frozen=True, tag=True):
    pass


class Shutdown(Struct, frozen=True, tag=True):
    """Finish running requests within `deadline` seconds, then exit."""

    deadline: float = 0.0


Order = LoadWeights | Submit | Cancel | ClearCache | Reconfigure | AskStats | Shutdown


class Output(Struct, frozen=True, tag=True):
    """The events of all requests from one engine step."""

    events: list[tuple[str, Event]] = field(default_factory=list)


class Stage(Struct, frozen=True, tag=True, omit_defaults=True):
    """The worker has reached a stage: `prompt` (tokenizer and template are loaded), then `weights`."""

    stage: Literal["prompt", "weights"]
    info: ModelInfo
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


def merged(events: list[Event]) -> list[Event]:
    """A list of events with adjacent deltas of the same part joined into one."""
    joined: list[Event] = []
    run: list[PartDelta] = []
    for event in (*events, None):
        delta = event if type(event) is PartDelta else None
        if run and (delta is None or run[-1].choice != delta.choice or run[-1].index != delta.index):
            last = run[-1]
            if len(run) > 1:
                text = "".join([each.text for each in run])
                tokens = tuple([token for each in run for token in each.tokens])
                last = PartDelta(last.choice, last.index, text, tokens, last.completed)
            joined.append(last)
            run = []
        if delta is not None:
            run.append(delta)
        elif event is not None:
            joined.append(event)
    return joined


SERIAL_MARK: Final = "#"
"""Separates a request's id from its serial number on the wire."""


def request_id(wire_id: str) -> str:
    """The request's id, without the serial number of its wire id."""
    return wire_id.rpartition(SERIAL_MARK)[0]


HEADER: Final = 4
LARGEST: Final = 1 << 30  # bytes; more than any request's media, less than a corrupt length would claim


class FrameError(Exception):
    """The stream is not made of frames; nothing after this point can be trusted."""


def frame(payload: bytes) -> bytes:
    """The payload, prefixed with its length. Raises `FrameError` if it is too large."""
    return header(payload) + payload


def header(payload: bytes) -> bytes:
    """The length prefix of a payload. Raises `FrameError` if the payload is too large."""
    if len(payload) > LARGEST:
        raise FrameError(f"A frame of {len(payload)} bytes is larger than the limit of {LARGEST}.")
    return len(payload).to_bytes(HEADER, "big")


class FrameBuffer:
    """Collects bytes as they arrive and yields whole frames."""

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

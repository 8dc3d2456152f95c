"""What crosses the socket between the API server and a worker.

A frame is four bytes of length (unsigned, big-endian) and that many bytes of msgpack: an `Order` towards the
worker, a `Report` from it.
"""

from typing import Any, Final, Literal

from msgspec import Struct, field

from pippin.core.errors import ErrorReport
from pippin.core.events import Event
from pippin.core.models import EngineStats, ModelInfo
from pippin.core.tasks import Task

STEP_FAILED: Final = 70
"""Exit status of a worker whose engine raised in a step."""
LOAD_FAILED: Final = 71


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

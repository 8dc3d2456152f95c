"""The contract between the worker and every kind of engine.

A kind is a module `pippin.engines.<kind>` with two functions:

    open_preparer(spec: WorkerSpec) -> Preparer
    open_engine(spec: WorkerSpec, preparer: Preparer, progress: LoadProgress) -> Engine

`open_preparer` reads configuration, tokenizer and template, and is quick; `open_engine` reads the weights.
Both raise `ServerError("load_failed", ...)` with a sentence that says what to do.
"""

from collections.abc import Callable
from typing import Any, Protocol

from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event
from pippin.core.models import EngineStats, ModelInfo
from pippin.core.tasks import Task

LoadProgress = Callable[[int, int, str], None]
"""Told of `done` of `total` units, and what they are."""

Emission = tuple[str, Event]
"""An event, and the id of the request that it belongs to."""


class Job(Protocol):
    """A prepared request: what `prepare` gives and `submit` takes. Engines add what they need."""

    @property
    def id(self) -> str: ...

    @property
    def accepted(self) -> Accepted: ...


class Preparer(Protocol):
    """Turns tasks into jobs beside the step loop: renders, tokenizes, decodes media.

    Used from threads of its own, never from the one that steps the engine; touches no array of the model.
    """

    @property
    def info(self) -> ModelInfo: ...

    def prepare(self, id: str, task: Task) -> Job | tuple[Event, ...]:
        """A job for the engine, or the whole answer where no weights are needed (counts, tokenizer calls).

        Raises `ServerError` for whatever the client can mend.
        """
        ...


class Engine(Protocol):
    """Five verbs, all called on the one thread that loaded the weights."""

    def submit(self, job: Job) -> None:
        """Take a job. Raises `ServerError` if it can never run (then nothing is held of it)."""
        ...

    def cancel(self, id: str) -> None:
        """Forget a request at once. Unknown ids are ignored. Nothing is emitted for it afterwards."""
        ...

    def step(self) -> list[Emission]:
        """Do the next piece of work, short enough to answer a cancel soon, and say what came of it."""
        ...

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        ...

    def close(self) -> None:
        """Finish background writes and let go of the weights."""
        ...

    def stats(self) -> EngineStats: ...

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None: ...

    def reconfigure(self, options: dict[str, Any]) -> None:
        """Take over options that may change while running; others raise `ServerError`."""
        ...


class Forgetful:
    """What engines have in common that keep nothing between requests, and take over nothing while they run."""

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        """There is none."""

    def reconfigure(self, options: dict[str, Any]) -> None:
        """The pool tells every model its share of memory, which is no news to one that keeps no caches."""
        fixed = sorted(set(options) - {"memory_bytes"})
        if fixed:
            raise ServerError(
                "unsupported", f"These options need a restart of the model: {', '.join(fixed)}."
            )

"""The contract between the worker and every kind of engine.

A kind is a module `pippin.engines.<kind>` with two functions:

    open_preparer(spec: WorkerSpec) -> Preparer
    open_engine(spec: WorkerSpec, preparer: Preparer, progress: LoadProgress) -> Engine

`open_preparer` reads configuration, tokenizer and template, and is quick; `open_engine` reads the weights.
Both raise `ServerError("load_failed", ...)` with a sentence that says what to do.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event
from pippin.core.models import EngineStats, ModelInfo
from pippin.core.tasks import Task

T = TypeVar("T")

LoadProgress = Callable[[int, int, str], None]
"""Called with the units done, the units in all, and what the units are."""

Emission = tuple[str, Event]
"""An event, and the id of the request that it belongs to."""


class NeedsWeightsError(Exception):
    """Raised by `prepare` for a task that can be prepared only when the weights are loaded. It is asked again then."""


class NobodyWaitsError(Exception):
    """The request was cancelled while it was prepared, or while a library computed its answer."""


def queue_is_full(waiting: int, retry_after: float) -> ServerError:
    """The refusal of a request for which a queue has no place; `retry_after` in seconds."""
    message = f"{waiting} requests are waiting, which is as many as the queue holds: try again later."
    return ServerError("overloaded", message, retry_after=retry_after)


class Job(Protocol):
    """A prepared request: what `prepare` returns and `submit` takes. Each engine adds the fields that it needs."""

    @property
    def id(self) -> str: ...

    @property
    def accepted(self) -> Accepted: ...


class Preparer(Protocol):
    """Turns tasks into jobs beside the step loop: it renders templates, tokenizes and decodes media.

    A preparer is called from threads of its own, never from the one that steps the engine, and uses no array of the
    model.
    """

    @property
    def info(self) -> ModelInfo: ...

    def prepare(self, id: str, task: Task) -> Job | tuple[Event, ...]:
        """Return a job for the engine, or the whole answer of a task that needs no weights (such as counting tokens).
        The service sends a task to a model of its `model_kind` alone.

        Raises `ServerError` for whatever the client can mend, and `NeedsWeightsError`.
        """
        ...


class Engine(Protocol):
    """A loaded model that runs jobs. All methods are called on the one thread that loaded the weights."""

    def submit(self, job: Job) -> None:
        """Take a job. Raises `ServerError` for a job that can never run, and keeps nothing of it."""
        ...

    def cancel(self, id: str) -> None:
        """Drop a request at once, so that nothing is emitted for it afterwards. Unknown ids are ignored."""
        ...

    def step(self) -> list[Emission]:
        """Do one piece of work, short enough that a cancel is served soon, and return its events."""
        ...

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        ...

    def close(self) -> None:
        """Finish background writes and release the weights."""
        ...

    def stats(self) -> EngineStats: ...

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None: ...

    def reconfigure(self, options: dict[str, Any]) -> None:
        """Apply options that may change while the engine runs. Raises `ServerError` for any other option."""
        ...


class CachelessEngine:
    """The methods of engines that keep nothing between requests and whose options are fixed while they run."""

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        """Do nothing: there is no cache to clear."""

    def reconfigure(self, options: dict[str, Any]) -> None:
        """Raises `ServerError` for every option but `memory_bytes`, which is ignored: there are no caches to resize."""
        # The pool sends every model its share of memory.
        fixed = sorted(set(options) - {"memory_bytes"})
        if fixed:
            raise ServerError(
                "unsupported", f"These options need a restart of the model: {', '.join(fixed)}."
            )


still_wanted: ContextVar[Callable[[], bool] | None] = ContextVar("still_wanted", default=None)
"""Whether anybody still waits for the work of a thread, so that long work can end when its client has left."""


@contextmanager
def holding(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Within this context, a variable of this thread has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def check_wanted() -> None:
    """Raises `NobodyWaitsError` if nobody waits any more. Long work calls this now and then."""
    wanted = still_wanted.get()
    if wanted is not None and not wanted():
        raise NobodyWaitsError


class Claim(Protocol):
    """A request, in the queue or in its place."""

    @property
    def account(self) -> str: ...
    @property
    def priority(self) -> int:
        """Higher comes first."""
        ...

    @property
    def arrival(self) -> int:
        """Lower is older."""
        ...

    @property
    def count(self) -> int:
        """The places that it takes."""
        ...


C = TypeVar("C", bound=Claim)


def places_of(active: Iterable[Claim]) -> Counter[str]:
    """The places of each account that has any."""
    places: Counter[str] = Counter()
    for each in active:
        places[each.account] += each.count
    return places


def first_of(waiting: Iterable[C], places: Counter[str]) -> C:
    """The request to admit next: highest priority, then the account with the fewest places, then the oldest."""
    return min(waiting, key=lambda each: (-each.priority, places[each.account], each.arrival))


def yielding_to(first: Claim, active: Iterable[C], places: Counter[str]) -> list[C]:
    """The requests that make place for `first`, of an account without any, one after the other: the youngest of no
    higher priority of the account with most places, which keeps one. Empty if no account has several."""
    most = max(places.values(), default=0)
    if most < 2 or places[first.account]:
        return []
    several = [each for each in active if places[each.account] == most and each.priority <= first.priority]
    return sorted(several, key=lambda each: (each.priority, -each.arrival))[: most - 1]

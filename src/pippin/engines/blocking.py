"""The engine of models whose library makes one long call for each request: speech, transcription and images.

The call runs on a thread of its own, and the step loop collects the events that it emits. MLX arrays belong to the
thread that made them, so the same thread loads the model, runs every call and frees the model. Calls run one after
the other, and a call is cancelled at the next point where it emits an event or checks whether it is cancelled.
"""

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import mlx.core as mx

from pippin.core.errors import ErrorReport, ServerError, way_out
from pippin.core.events import Accepted, Event, Failed
from pippin.core.models import EngineStats
from pippin.engines.base import CachelessEngine, Emission, Job, NobodyWaitsError

logger = logging.getLogger(__name__)

Model = TypeVar("Model")

STEP_SECONDS = 0.05
"""How long a step waits for an event, and so the longest that an order to the engine waits."""


class Call:
    """The running call of one request, as the library's callbacks see it: they emit events and learn of a cancel."""

    def __init__(self, id: str, outbox: "queue.SimpleQueue[tuple[Call, Event | None]]") -> None:
        self.id = id
        self._outbox = outbox
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def check(self) -> None:
        """Raises `NobodyWaitsError` if the request was cancelled."""
        if self._cancelled.is_set():
            raise NobodyWaitsError

    def emit(self, event: Event) -> None:
        self.check()
        self._outbox.put((self, event))


@dataclass(frozen=True)
class BlockingJob(Generic[Model]):
    """A prepared request. `run` does all the work on the model's thread, and the last event it emits is terminal."""

    id: str
    accepted: Accepted
    run: Callable[[Model, Call], None]


class BlockingEngine(CachelessEngine, Generic[Model]):
    """An engine around one model and the thread that runs it. The constructor raises what `load` raises."""

    def __init__(self, load: Callable[[], Model]) -> None:
        self._inbox: queue.SimpleQueue[tuple[BlockingJob[Model], Call] | None] = queue.SimpleQueue()
        # None for an event: the call has ended.
        self._outbox: queue.SimpleQueue[tuple[Call, Event | None]] = queue.SimpleQueue()
        self._calls: dict[str, Call] = {}
        self._finished = 0
        loaded: Future[None] = Future()
        self._thread = threading.Thread(target=self._main, args=(load, loaded), name="model", daemon=True)
        self._thread.start()
        loaded.result()

    def _main(self, load: Callable[[], Model], loaded: "Future[None]") -> None:
        try:
            model = load()
        except BaseException as error:
            loaded.set_exception(error)
            return
        loaded.set_result(None)
        while (item := self._inbox.get()) is not None:
            self._run(model, *item)

    def _run(self, model: Model, job: BlockingJob[Model], call: Call) -> None:
        try:
            call.check()
            job.run(model, call)
        except NobodyWaitsError:
            pass
        except ServerError as error:
            self._outbox.put((call, Failed(error.report)))
        except (Exception, SystemExit) as error:  # whatever a library raises ends this request, and no other
            logger.exception("request %s failed in its model", job.id)
            told = way_out(str(error)) or "The log says how."
            report = ErrorReport(kind="internal", message=f"The model failed on this request. {told}")
            self._outbox.put((call, Failed(report)))
        self._outbox.put((call, None))

    def submit(self, job: Job) -> None:
        assert isinstance(job, BlockingJob)
        call = Call(job.id, self._outbox)
        self._calls[job.id] = call
        self._inbox.put((job, call))

    def cancel(self, id: str) -> None:
        if (call := self._calls.pop(id, None)) is not None:
            call.cancel()

    @property
    def busy(self) -> bool:
        return bool(self._calls)

    def step(self) -> list[Emission]:
        """Wait at most `STEP_SECONDS` for an event of the running call, then return all that it has emitted."""
        found: list[tuple[Call, Event | None]] = []
        with suppress(queue.Empty):
            found.append(self._outbox.get(timeout=STEP_SECONDS))
            while True:
                found.append(self._outbox.get_nowait())
        emissions: list[Emission] = []
        for call, event in found:
            self._finished += event is None
            if self._calls.get(call.id) is not call:
                continue  # after a cancel the same id may belong to a new request
            if event is None:
                del self._calls[call.id]
            else:
                emissions.append((call.id, event))
        return emissions

    def close(self) -> None:
        for call in self._calls.values():
            call.cancel()
        self._calls.clear()
        self._inbox.put(None)
        self._thread.join(timeout=30)

    def stats(self) -> EngineStats:
        return EngineStats(
            running=min(1, len(self._calls)),
            waiting=max(0, len(self._calls) - 1),
            steps=self._finished,
            active_bytes=mx.get_active_memory(),
            peak_bytes=mx.get_peak_memory(),
        )

"""The sentence: a request leases a model, is submitted to its worker, and answers with events.

    service = open_service(options, catalog)
    async with await service.start(task, model="default", id="req-1") as run:
        async for event in run.events(): ...

`start` waits for the model to load, if need be, and for the worker to accept the request, so that whatever deserves
a status code is raised before the first byte. A handler that must send bytes sooner (a keep-alive while a model
loads) runs it as a task and asks `pool.states()` how far the load is; cancelling that task gives everything back.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from types import TracebackType


from pippin.config.server_options import ServerOptions
from pippin.core.completion import Completion
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import Accepted, Event, Failed
from pippin.core.models import ModelInfo
from pippin.core.tasks import Generate, Task
from pippin.runtime.mailbox import Mailbox
from pippin.runtime.memory import memory_budget
from pippin.runtime.pool import Lease, Pool
from pippin.runtime.source import Estimate, ModelSource

log = logging.getLogger(__name__)


class Run:
    """One request that a worker has accepted. Leaving it is the only cancel."""

    def __init__(self, service: "Service", id: str, lease: Lease, mailbox: Mailbox, task: Task) -> None:
        self.id = id
        self.accepted: Accepted | None = None
        self._service = service
        self._lease = lease
        self._mailbox = mailbox
        self._task = task
        self._first: list[Event] = []
        self._closed = False

    @property
    def model(self) -> ModelInfo:
        return self._lease.worker.info

    async def events(self) -> AsyncIterator[Event]:
        """The events after `Accepted`; the last one is terminal, and `Failed` is one of them, never raised.

        A slow reader finds adjacent deltas joined.
        """
        while True:
            batch = await self.take()
            for event in batch:
                yield event
            if not batch:
                return

    async def take(self) -> list[Event]:
        """All events that have come since the last call, waiting for at least one; empty after the end."""
        if self._first:
            first, self._first = self._first, []
            return first
        return await self._mailbox.take()

    async def collect(self) -> Completion:
        """The whole answer. Raises `ServerError` where the run fails."""
        completion = Completion(accepted=self.accepted)
        async for event in self.events():
            completion.add(event)
        return completion

    async def aclose(self) -> None:
        """Give the model back; what still runs in the worker is cancelled."""
        if not self._closed:
            self._closed = True
            self._lease.worker.cancel(self.id)
            self._lease.release(self._keep_alive())
            self._service.forget(self)

    async def __aenter__(self) -> "Run":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def wait_accepted(self) -> None:
        """Wait for the first event: raises the refusal, keeps `Accepted`, leaves anything else to the reader."""
        batch = await self._mailbox.take()
        match batch[0]:
            case Failed(error):
                raise ServerError.of(error)
            case Accepted() as accepted:
                self.accepted = accepted
                batch = batch[1:]
        self._first = batch

    def fail(self, error: ErrorReport) -> None:
        """End the run from outside."""
        self._lease.worker.cancel(self.id)
        self._mailbox.fail(error)

    def _keep_alive(self) -> float | None:
        return self._task.request.keep_alive if isinstance(self._task, Generate) else None


class Service:
    def __init__(self, options: ServerOptions, catalog: ModelSource, pool: Pool) -> None:
        self.catalog = catalog
        self.pool = pool
        self._options = options
        self._runs: dict[str, Run] = {}

    async def start(self, task: Task, *, model: str, id: str, client: str | None = None) -> Run:
        """Begin a task; returns once it is accepted. Raises `ServerError` for all that deserves a status code."""
        lease = await self.pool.lease(self.model(model))
        try:
            choices = task.request.n if isinstance(task, Generate) else 1
            run = Run(self, id, lease, lease.worker.submit(id, task, choices), task)
        except BaseException:
            lease.release()
            raise
        self._runs[id] = run
        try:
            await run.wait_accepted()
        except BaseException:
            await run.aclose()
            raise
        return run

    def models(self) -> list[ModelInfo]:
        return [self.pool.info(info.id) or info for info in self.catalog.models()]

    def model(self, name: str) -> ModelInfo:
        """What is known of a model; `default` is the one loaded last, else the first that is served.

        A `claude-*` name that nothing here has is `claude_model`, or the default: Claude Code asks for several.

        Raises `ServerError("model_not_found")`.
        """
        if name == "default":
            name = self._default_name()
        info = self._resolve(name)
        return self.pool.info(info.id) or info

    async def cancel(self, id: str) -> bool:
        """End a request by its id, whoever reads it; False if there is none."""
        run = self._runs.get(id)
        if run is None:
            return False
        run.fail(ErrorReport(kind="cancelled", message="The request was cancelled."))
        return True

    async def preload(self) -> None:
        """Load the models that the operator named, in order; a failure is logged and stops nothing."""
        for entry in self._options.models:
            if entry.preload:
                try:
                    await self.pool.load(entry.name or entry.path)
                except ServerError as error:
                    log.error("Preloading %s failed: %s", entry.name or entry.path, error.report.message)

    async def close(self, deadline: float) -> None:
        """Take no more requests, let those that run finish within `deadline` seconds, end every worker."""
        await self.pool.close(deadline)

    def forget(self, run: Run) -> None:
        self._runs.pop(run.id, None)

    def _resolve(self, name: str) -> ModelInfo:
        try:
            return self.catalog.resolve(name)
        except ServerError:
            if not name.startswith("claude-"):
                raise
        return self.catalog.resolve(self._options.claude_model or self._default_name())

    def _default_name(self) -> str:
        loaded = self.pool.last_loaded()
        if loaded is not None:
            return loaded
        for entry in self._options.models:
            return entry.name or entry.path
        found = self.catalog.models()
        if len(found) == 1:
            return found[0].id
        raise ServerError(
            "model_not_found",
            "No model is loaded or served by default; name one of /v1/models in `model`.",
            "model",
        )


def open_service(options: ServerOptions, catalog: ModelSource, estimate: Estimate) -> Service:
    """A service over real worker processes. `estimate` is the catalog's `footprint`."""
    return Service(options, catalog, Pool(options, catalog, estimate, memory_budget(options)))

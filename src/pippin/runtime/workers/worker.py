"""The interface of a worker: a process, a group of them, or a stand-in in tests."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from pippin.core.errors import ErrorReport, ServerError
from pippin.core.models import EngineStats, ModelInfo, WorkerSpec
from pippin.core.tasks import Task
from pippin.runtime.workers.link import Mailbox


class Requests(Protocol):
    """The requests that were sent to a worker, each with its mailbox."""

    def submit(self, id: str, task: Task, mailbox: Mailbox) -> None:
        """Send a request, whose events go to `mailbox`. Raises `ServerError` if the worker is gone or takes no more."""
        ...

    def cancel(self, id: str) -> None:
        """Drop a request, which may have ended; its mailbox gets nothing more."""
        ...

    def fail_all(self, error: ErrorReport) -> None:
        """Fail every request."""
        ...


class Worker(Protocol):
    """What the pool and the service need from a worker.

    `prompt_ready` resolves first, and `weights_ready` some time after `load_weights`; either may raise a `ServerError`.
    `died` always resolves in the end, with the error to report to clients.
    """

    prompt_ready: "asyncio.Future[None]"
    weights_ready: "asyncio.Future[None]"
    died: "asyncio.Future[ErrorReport]"

    @property
    def pid(self) -> int | None: ...
    @property
    def info(self) -> ModelInfo: ...
    @property
    def footprint(self) -> int: ...
    @property
    def progress(self) -> tuple[int, int, str] | None: ...
    @property
    def requests(self) -> Requests: ...
    def load_weights(self, memory_bytes: int | None) -> None: ...
    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None: ...
    def reconfigure(self, options: dict[str, object]) -> None: ...
    async def stats(self) -> EngineStats: ...
    async def stop(self, deadline: float) -> None: ...


class Stages:
    """The futures of a `Worker`'s life."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.prompt_ready: asyncio.Future[None] = loop.create_future()
        self.weights_ready: asyncio.Future[None] = loop.create_future()
        self.died: asyncio.Future[ErrorReport] = loop.create_future()

    def fail_load(self, error: ServerError) -> None:
        """Fail the stages that were not reached."""
        for stage in (self.prompt_ready, self.weights_ready):
            if not stage.done():
                stage.set_exception(error)
                stage.exception()  # mark it retrieved: nobody may be waiting


Launcher = Callable[[WorkerSpec], Awaitable[Worker]]
"""Starts a worker; returns once it runs."""

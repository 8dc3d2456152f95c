"""The interface of a worker: a process, a group of them, or a stand-in in tests."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from pippin.core.errors import ErrorReport, ServerError
from pippin.core.models import EngineStats, ModelInfo, WorkerSpec
from pippin.core.tasks import Task
from pippin.runtime.workers.link import Mailbox


class Worker(Protocol):
    """What the pool and the service need from a worker.

    `prompt_ready` resolves first, and `weights_ready` some time after `load_weights`; either may raise a `ServerError`.
    `died` always resolves in the end, with the error to report to clients.
    """

    @property
    def pid(self) -> int | None: ...
    @property
    def info(self) -> ModelInfo: ...
    @property
    def footprint(self) -> int: ...
    @property
    def progress(self) -> tuple[int, int, str] | None: ...
    @property
    def prompt_ready(self) -> "asyncio.Future[None]": ...
    @property
    def weights_ready(self) -> "asyncio.Future[None]": ...
    @property
    def died(self) -> "asyncio.Future[ErrorReport]": ...
    def load_weights(self, memory_bytes: int | None) -> None: ...
    def submit(self, id: str, task: Task, choices: int, mailbox: Mailbox | None = None) -> Mailbox: ...
    def cancel(self, id: str) -> None: ...
    def fail_all(self, error: ErrorReport) -> None: ...
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

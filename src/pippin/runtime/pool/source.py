"""The interfaces of the catalog, for the pool and the service, and of the pool, for requests."""

from collections.abc import Callable
from typing import Protocol

from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ServerOptions
from pippin.core.models import HubModel, ModelInfo, ModelKind, ModelState
from pippin.core.tasks import Task
from pippin.runtime.workers.link import Mailbox

Estimate = Callable[[ModelInfo, ModelOptions], int]
"""Estimates the bytes that a model takes once loaded."""


class ModelSource(Protocol):
    """What the pool and the service need of `pippin.catalog.Catalog`."""

    def models(self) -> list[ModelInfo]: ...

    def missing(self) -> list[ModelInfo]:
        """The models that the operator named and that are not downloaded yet."""
        ...

    def resolve(self, name: str) -> ModelInfo:
        """The model that a name means. Raises `ServerError` for an unknown or ambiguous name."""
        ...

    def knows(self, name: str) -> bool:
        """Whether the name belongs to a model that is here, or that the operator named."""
        ...

    async def ensure(self, name: str, on_progress: Callable[[int, int, str], None]) -> ModelInfo:
        """As `resolve`, but first downloads a missing model, if requests may trigger that."""
        ...

    async def complete(self, info: ModelInfo, on_progress: Callable[[int, int, str], None]) -> None:
        """Download the files that the model's options name, if requests may trigger that."""
        ...

    async def search(self, words: str, *, limit: int, mlx_only: bool) -> list[HubModel]:
        """The most downloaded models on the hub whose names contain these words. Raises `ServerError`."""
        ...

    def remove(self, name: str) -> object:
        """Delete a model's files. Raises `ServerError` if they are not Pippin's to delete."""
        ...

    def adopt(self, options: ServerOptions) -> None: ...

    def options_for(self, info: ModelInfo) -> ModelOptions: ...


class Answerer(Protocol):
    """What a request needs from a worker."""

    @property
    def info(self) -> ModelInfo: ...
    def submit(self, id: str, task: Task, choices: int, mailbox: Mailbox | None = None) -> Mailbox: ...
    def cancel(self, id: str) -> None: ...


class AnyLease(Protocol):
    """The right to use a model's worker; released once."""

    @property
    def worker(self) -> Answerer: ...
    @property
    def options(self) -> ModelOptions: ...
    def release(self, keep_alive: float | None = None) -> None:
        """Give the lease back. `keep_alive`: seconds that the model stays if no other request comes; below 0: for
        ever."""
        ...


class Leases(Protocol):
    """What requests need from a pool: this process's own, or the one it borrows from."""

    async def lease(self, info: ModelInfo) -> AnyLease: ...
    def states(self) -> list[ModelState]: ...
    def info(self, model: str) -> ModelInfo | None: ...
    def last_loaded(self, kind: ModelKind | None = None) -> str | None: ...
    async def adopt(self, options: ServerOptions) -> None: ...
    async def close(self, deadline: float) -> None: ...

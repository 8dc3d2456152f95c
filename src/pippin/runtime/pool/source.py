"""The interface of the catalog, for the pool and the service."""

from collections.abc import Callable
from typing import Protocol

from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ServerOptions
from pippin.core.models import HubModel, ModelInfo, Purpose, Suggestion

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
        """Resolve the name as `resolve` does, but first download a missing model, if requests may trigger that."""
        ...

    async def complete(self, info: ModelInfo, on_progress: Callable[[int, int, str], None]) -> None:
        """Download the files that the model's options name, if requests may trigger that."""
        ...

    async def search(self, words: str, *, limit: int, mlx_only: bool) -> list[HubModel]:
        """The most downloaded models on the hub whose names contain these words. Raises `ServerError`."""
        ...

    def suited(self, purpose: Purpose) -> list[Suggestion]:
        """Models that fit this machine, the best first."""
        ...

    def remove(self, name: str) -> object:
        """Delete a model's files. Raises `ServerError` if they are not Pippin's to delete."""
        ...

    def adopt(self, options: ServerOptions) -> None: ...

    def options_for(self, info: ModelInfo) -> ModelOptions: ...

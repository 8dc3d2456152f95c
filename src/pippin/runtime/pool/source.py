"""What the pool and the service ask of the catalog."""

from collections.abc import Callable
from typing import Protocol

from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ServerOptions
from pippin.core.models import HubModel, ModelInfo

Estimate = Callable[[ModelInfo, ModelOptions], int]
"""Bytes that a model takes when it is loaded, before it has been."""


class ModelSource(Protocol):
    """What the pool and the service need of `pippin.catalog.Catalog`."""

    def models(self) -> list[ModelInfo]: ...

    def missing(self) -> list[ModelInfo]:
        """Those that the operator named and that are still to be downloaded."""
        ...

    def resolve(self, name: str) -> ModelInfo:
        """The model that a name means. Raises `ServerError` for a name that is unknown or ambiguous."""
        ...

    def knows(self, name: str) -> bool:
        """Whether the name is that of a model which is here, or which the operator named."""
        ...

    async def ensure(self, name: str, on_progress: Callable[[int, int, str], None]) -> ModelInfo:
        """As `resolve`; a model that is missing is downloaded first, if requests may cause that."""
        ...

    async def complete(self, info: ModelInfo, on_progress: Callable[[int, int, str], None]) -> None:
        """Download what the model's options name beside it, if requests may cause that."""
        ...

    async def search(self, words: str, *, limit: int, mlx_only: bool) -> list[HubModel]:
        """The most downloaded models of the hub whose names have these words. Raises `ServerError`."""
        ...

    def remove(self, name: str) -> object:
        """Delete a model's files. Raises `ServerError` where they are not Pippin's to delete."""
        ...

    def adopt(self, options: ServerOptions) -> None: ...

    def options_for(self, info: ModelInfo) -> ModelOptions: ...

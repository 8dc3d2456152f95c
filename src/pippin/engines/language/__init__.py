"""Language models: the kind's two doors, which import what they lead to: much of this room needs no mlx."""

from typing import TYPE_CHECKING, Any

from pippin.core.models import WorkerSpec

if TYPE_CHECKING:
    from pippin.engines.language.loading import load_engine as open_engine
    from pippin.engines.language.prompt import LanguagePreparer

__all__ = ["open_engine", "open_preparer"]


def open_preparer(spec: WorkerSpec) -> "LanguagePreparer":
    from pippin.engines.language import prompt

    return prompt.open_preparer(spec)


def __getattr__(name: str) -> Any:
    """`open_engine` is imported when it is first named: a worker does so while it waits for memory."""
    if name == "open_engine":
        from pippin.engines.language.loading import load_engine

        return load_engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

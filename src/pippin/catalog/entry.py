"""A line of the catalog: a model folder with what is known of it, or why it cannot be used."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from pippin.catalog.info import INCOMPLETE
from pippin.catalog.scan import Found
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.models import Capabilities, ModelInfo, ModelKind

SCRIPTED: Final = "scripted"
SCRIPT_SUFFIX: Final = ".script.json"

Stamp = tuple[tuple[int, int], ...]
"""Modification times and sizes."""


@dataclass(frozen=True)
class CatalogEntry:
    """A model folder, usable or not: exactly one of `info` and `error` is set, but for a model that the operator named
    and that is to be downloaded: that has both."""

    found: Found
    info: ModelInfo | None
    error: ErrorReport | None
    stamp: Stamp = ()  # of the files that this was read from
    repository: str | None = None  # where it is to be downloaded from

    @property
    def incomplete(self) -> bool:
        """Not all of it was downloaded."""
        return self.error is not None and self.error.code == INCOMPLETE


def stamp_of(folder: Path) -> Stamp:
    """Changes when a file is added or removed, or one of those that are read is written."""
    times = []
    for path in (
        folder,
        folder / "config.json",
        folder / "tokenizer_config.json",
        folder / "generation_config.json",
    ):
        try:
            status = os.stat(path)
        except OSError:
            times.append((0, 0))
        else:
            times.append((status.st_mtime_ns, status.st_size))
    return tuple(times)


def model_kind(name: str | None) -> ModelKind | None:
    for kind in get_args(ModelKind):
        if kind == name:
            found: ModelKind = kind
            return found
    if name is None:
        return None
    known = ", ".join(get_args(ModelKind))
    raise ServerError("invalid_request", f"{name!r} is not a kind of model; there are {known}.", "kind")


def is_script(name: str) -> bool:
    """Whether an operator's word means the scripted engine: its name, or the path of a script."""
    return name == SCRIPTED or name.endswith(SCRIPT_SUFFIX)


def scripted(name: str, id: str | None) -> CatalogEntry:
    """The scripted model: a JSON script, or the one that echoes."""
    path = None if name == SCRIPTED else str(Path(name).expanduser().resolve())
    served = id or Path(name).name.removesuffix(SCRIPT_SUFFIX)
    info = ModelInfo(
        id=served,
        kind="scripted",
        path=path,
        architecture=SCRIPTED,
        capabilities=Capabilities(chat=True, tools=True, reasoning=True),
    )
    folder = Path(path or ".")
    return CatalogEntry(Found(served, folder, "operator", folder), info, None, stamp_of(folder))

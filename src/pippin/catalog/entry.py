"""A catalog entry: a model folder with its info, or the reason why it cannot be used."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pippin.catalog.info import INCOMPLETE
from pippin.catalog.scan import Found
from pippin.core.errors import ErrorReport
from pippin.core.models import Capabilities, ModelInfo

SCRIPTED: Final = "scripted"
SCRIPT_SUFFIX: Final = ".script.json"

Stamp = tuple[tuple[int, int], ...]
"""Modification times and sizes."""


@dataclass(frozen=True)
class CatalogEntry:
    """A model folder, usable or not. Exactly one of `info` and `error` is set, except for a model that the operator
    named and that is not downloaded yet: it has both."""

    found: Found
    info: ModelInfo | None
    error: ErrorReport | None
    stamp: Stamp = ()  # of the files that the entry was read from
    repository: str | None = None  # where to download it from

    @property
    def incomplete(self) -> bool:
        """Whether the download is incomplete."""
        return self.error is not None and self.error.code == INCOMPLETE


def stamp_of(folder: Path) -> Stamp:
    """A stamp that changes when files are added or removed, or one of the files that are read is written."""
    times = []
    for name in ("", "config.json", "tokenizer_config.json", "generation_config.json"):
        try:
            status = os.stat(folder / name)
        except OSError:
            times.append((0, 0))
        else:
            times.append((status.st_mtime_ns, status.st_size))
    return tuple(times)


def is_script(name: str) -> bool:
    """Whether an operator's name means the scripted engine: `scripted`, or the path of a script."""
    return name == SCRIPTED or name.endswith(SCRIPT_SUFFIX)


def scripted(name: str, id: str | None) -> CatalogEntry:
    """The scripted model: a JSON script, or the built-in echo."""
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

"""Which packages are installed beside this one, by their `.dist-info` folders: to import `importlib.metadata` alone
takes 15 ms of a start."""

import contextlib
import csv
import os
import sys
from functools import cache
from pathlib import Path


@cache
def folders() -> dict[str, Path]:
    """The `.dist-info` of each package, which is named after its version, by the package's name; the first of Python's
    path counts."""
    found: dict[str, Path] = {}
    for place in sys.path:
        with contextlib.suppress(OSError):
            for each in os.listdir(place or "."):
                if each.endswith(".dist-info"):
                    found.setdefault(each.partition("-")[0].replace("_", "-").lower(), Path(place, each))
    return found


def version(package: str) -> str:
    """Raises `KeyError` for a package that is not installed."""
    return folders()[package].stem.partition("-")[2]


def files(package: str) -> list[Path]:
    """The files that came with a package; none of one that is not installed."""
    folder = folders().get(package)
    if folder is None or not (listed := folder / "RECORD").is_file():
        return []
    with listed.open(encoding="utf-8", newline="") as lines:
        return [folder.parent / row[0] for row in csv.reader(lines) if row]

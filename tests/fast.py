"""The fast run, `pytest --fast`: no model, no socket and no process, so that it takes less than a minute.

A test file is left out if what it imports computes, serves or starts processes. A test that opens a socket or starts a
process all the same is skipped where it does, so a new test needs no mark.
"""

import importlib.abc
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final, NoReturn

import pytest

TESTS: Final = Path(__file__).parent
ROOT: Final = TESTS.parent
LIBRARIES: Final = frozenset(
    ("mlx", "mlx_lm", "mlx_vlm", "mlx_audio", "mflux", "ray", "torch", "transformers")
)
OUTSIDE: Final = frozenset(
    (
        "asyncio.subprocess",
        "http.server",
        "multiprocessing",
        "pippin.api.server",
        "pty",
        "schemathesis",
        "socket",
        "socketserver",
        "subprocess",
        "tests.service.doubles.scripted_service",
        "uvicorn",
    )
)
"""What a test imports that serves, starts processes or tries requests by the hundred. In Pippin's own modules these
names say nothing of a test."""
IMPORT: Final = re.compile(
    r"^(?:import|from) (?P<module>[\w.]+)(?: import (?P<names>\([^)]*\)|.*))?$", re.MULTILINE
)
NAME: Final = re.compile(r"(\w+)(?: as \w+)?")


def left_out(file: Path) -> bool:
    """Whether importing the file imports a library that computes, or what a test serves or starts processes with."""
    return _reaches(file, set())


def _reaches(file: Path, seen: set[Path]) -> bool:
    if file in seen:
        return False
    seen.add(file)
    unwanted = LIBRARIES | OUTSIDE if TESTS in file.parents else LIBRARIES
    return any(
        {name, name.partition(".")[0]} & unwanted or any(_reaches(found, seen) for found in _files(name))
        for name in _imports(file)
    )


@cache
def _files(name: str) -> tuple[Path, ...]:
    """The files of the project that an import of the module runs: its own, and those of the packages around it."""
    words = name.split(".")
    if words[0] not in ("pippin", "tests", "scripts", "benchmarks"):
        return ()
    root = ROOT / "src" if words[0] == "pippin" else ROOT
    found = [root.joinpath(*words[:end], "__init__.py") for end in range(1, len(words) + 1)]
    return tuple(file for file in (*found, root.joinpath(*words).with_suffix(".py")) if file.is_file())


@cache
def _imports(file: Path) -> tuple[str, ...]:
    """The modules that the file's unindented lines import: what functions import, and types alone, is not run."""
    found = []
    for match in IMPORT.finditer(file.read_text("utf-8")):
        module, names = match["module"], NAME.findall(match["names"] or "")
        found += [module, *(f"{module}.{name}" for name in names)]
    return tuple(found)


class _NoLibraries(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in LIBRARIES:
            pytest.skip(f"needs {name}, which the fast run does not import", allow_module_level=True)
        return None


def forbid() -> None:
    """Skip whoever imports a library that computes, opens a socket or starts a process."""
    sys.meta_path.insert(0, _NoLibraries())
    for name in ("bind", "connect", "connect_ex"):
        setattr(socket.socket, name, _skipping("a socket"))
    subprocess.Popen.__init__ = _skipping("a process")  # type: ignore[method-assign]


def _skipping(what: str) -> Callable[..., NoReturn]:
    def skip(*_: object, **__: object) -> NoReturn:
        pytest.skip(f"needs {what}, which the fast run has not", allow_module_level=True)

    return skip

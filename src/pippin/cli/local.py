"""What verbs do on this machine without a server: its catalog, and processes that do one errand with a model."""

import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import Struct

from pippin.cli.terminal import Progress
from pippin.config import environment
from pippin.config.load import load
from pippin.config.settings import Settings, Sources
from pippin.core.decoding import json_decoder
from pippin.core.errands import ErrandFailed, Step
from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec

if TYPE_CHECKING:
    from pippin.catalog import Catalog, CatalogRoots

OPTIONS: Final = ("config", "model_dirs", "offline")
"""Options that affect the catalog."""


def settings_of(parsed: Namespace) -> Settings:
    return load(Sources(flags=tuple(parsed.given)))


def open_catalog(settings: Settings) -> "Catalog":
    from pippin.catalog import Catalog

    return Catalog(settings.server, roots())


def roots() -> "CatalogRoots":
    from pippin.catalog import default_roots

    return default_roots(environment.variables(), Path.home())


Done = TypeVar("Done", bound=Struct)


def run_errand(errand: str, spec: WorkerSpec, asked: Struct, done: type[Done], tell: Progress) -> Done:
    """What the process tells last, after its steps. Raises `ServerError`, also with the reason that it gives."""
    command = [sys.executable, "-m", "pippin.worker.errand", errand]
    told: Any = None
    with (
        TemporaryFile() as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as running,
    ):
        assert running.stdin is not None
        assert running.stdout is not None
        try:
            running.stdin.write(msgspec.json.encode(spec) + b"\n" + msgspec.json.encode(asked) + b"\n")
            running.stdin.close()
            decoder = json_decoder(Step | done | ErrandFailed)
            for line in running.stdout:
                told = decoder.decode(line)
                if not isinstance(told, Step):
                    break
                tell(told.done, told.total, told.what)
        except KeyboardInterrupt:
            running.wait()  # it was interrupted too, and removes its files
            raise
        running.wait()
        log.seek(0)
        said = log.read().decode(errors="replace").strip().splitlines()
    if isinstance(told, done):
        return told
    if isinstance(told, ErrandFailed):
        raise ServerError("load_failed", told.message)
    last = said[-1] if said else "it was killed: perhaps memory ran out"
    raise ServerError("load_failed", f"The process ended with status {running.returncode}: {last}")

"""What verbs do on this machine without a server: its catalog, and processes that verify a model."""

import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import msgspec

from pippin.cli.terminal import Progress
from pippin.config import environment
from pippin.config.load import load
from pippin.config.settings import Settings, Sources
from pippin.core.decoding import json_decoder
from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec
from pippin.core.verification import Report, Step, Verification, VerificationFailed

if TYPE_CHECKING:
    from pippin.catalog import Catalog, CatalogRoots


def settings_of(parsed: Namespace) -> Settings:
    return load(Sources(flags=tuple(parsed.given)))


def open_catalog(settings: Settings) -> "Catalog":
    from pippin.catalog import Catalog

    return Catalog(settings.server, roots())


def roots() -> "CatalogRoots":
    from pippin.catalog import default_roots

    return default_roots(environment.variables(), Path.home())


def run_verification(spec: WorkerSpec, asked: Verification, tell: Progress) -> Report:
    """What a process that verifies tells last, after its steps. Raises `ServerError`, also with the reason that it
    gives."""
    command = [sys.executable, "-m", "pippin.worker.verification"]
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
            decoder = json_decoder(Step | Report | VerificationFailed)
            for line in running.stdout:
                told = decoder.decode(line)
                if not isinstance(told, Step):
                    break
                tell(told.done, told.total, told.what)
        except KeyboardInterrupt:
            running.wait()  # it was interrupted too
            raise
        running.wait()
        log.seek(0)
        said = log.read().decode(errors="replace").strip().splitlines()
    if isinstance(told, Report):
        return told
    if isinstance(told, VerificationFailed):
        raise ServerError("load_failed", told.message)
    last = said[-1] if said else "it was killed: perhaps memory ran out"
    raise ServerError("load_failed", f"The process ended with status {running.returncode}: {last}")

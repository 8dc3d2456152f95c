"""Runs the process that converts a checkpoint, and reports its progress."""

import subprocess
import sys
from tempfile import TemporaryFile
from typing import IO, Final

import msgspec

from pippin.cli.terminal import Progress
from pippin.core.conversion import Conversion, ConversionFailed, Converted, Step, Told
from pippin.core.decoding import json_decoder
from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec

PROCESS: Final = "pippin.worker.conversion"


def run_conversion(spec: WorkerSpec, asked: Conversion, tell: Progress) -> Converted:
    """Run the process that converts. Raises `ServerError`."""
    command = [sys.executable, "-m", PROCESS]
    with (
        TemporaryFile() as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(spec) + b"\n" + msgspec.json.encode(asked) + b"\n")
            process.stdin.close()
            told = _last_word(process.stdout, tell)
        except KeyboardInterrupt:
            process.wait()  # it was interrupted too, and removes its files
            raise
        process.wait()
        log.seek(0)
        said = log.read().decode(errors="replace").strip()
    match told:
        case Converted():
            return told
        case ConversionFailed(message):
            raise ServerError("load_failed", message)
        case None:
            last = said.splitlines()[-1:] or ["it was killed: perhaps memory ran out"]
            raise ServerError(
                "load_failed", f"The conversion ended with status {process.returncode}: {last[0]}"
            )


def _last_word(lines: IO[bytes], tell: Progress) -> Converted | ConversionFailed | None:
    decoder = json_decoder(Told)
    for line in lines:
        told: Told = decoder.decode(line)
        if not isinstance(told, Step):
            return told
        tell(told.done, told.total, told.what)
    return None

"""Runs a process that does one errand with a model, and reports its progress."""

import subprocess
import sys
from tempfile import TemporaryFile
from typing import IO, Any, Final, TypeVar

import msgspec
from msgspec import Struct

from pippin.cli.terminal import Progress
from pippin.core.conversion import Conversion, ConversionFailed, Converted, Step, Told
from pippin.core.decoding import json_decoder
from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec
from pippin.core.verification import Report, Verification, VerificationFailed, VerifyTold

PROCESS: Final = "pippin.worker.conversion"
VERIFICATION: Final = "pippin.worker.verification"
Done = TypeVar("Done", bound=Struct)


def run_conversion(spec: WorkerSpec, asked: Conversion, tell: Progress) -> Converted:
    """Run the process that converts. Raises `ServerError`."""
    return _last_word(PROCESS, "conversion", (spec, asked), (Told, Converted, ConversionFailed), tell)


def run_verification(spec: WorkerSpec, asked: Verification, tell: Progress) -> Report:
    """Run the process that verifies. Raises `ServerError`."""
    kinds = (VerifyTold, Report, VerificationFailed)
    return _last_word(VERIFICATION, "verification", (spec, asked), kinds, tell)


def _last_word(
    module: str,
    name: str,
    said: tuple[WorkerSpec, Struct],
    kinds: tuple[Any, type[Done], type[ConversionFailed | VerificationFailed]],
    tell: Progress,
) -> Done:
    """What the process tells last. `kinds` are all its messages, the last one, and the one for a refusal."""
    command = [sys.executable, "-m", module]
    with (
        TemporaryFile() as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(b"".join(msgspec.json.encode(each) + b"\n" for each in said))
            process.stdin.close()
            told = _read(process.stdout, kinds[0], tell)
        except KeyboardInterrupt:
            process.wait()  # it was interrupted too, and removes its files
            raise
        process.wait()
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines()
    if isinstance(told, kinds[1]):
        return told
    if isinstance(told, kinds[2]):
        raise ServerError("load_failed", told.message)
    last = lines[-1] if lines else "it was killed: perhaps memory ran out"
    raise ServerError("load_failed", f"The {name} ended with status {process.returncode}: {last}")


def _read(lines: IO[bytes], kind: Any, tell: Progress) -> Any:
    decoder = json_decoder(kind)
    for line in lines:
        told = decoder.decode(line)
        if not isinstance(told, Step):
            return told
        tell(told.done, told.total, told.what)
    return None

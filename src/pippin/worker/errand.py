"""Does one errand with a model in a process of its own: `python -m pippin.worker.errand convert` or `verify`.

Such a process reads one line with the model's `WorkerSpec` and one with what is asked, then writes messages, one a
line. As in every worker, the model's own code is not run.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from pippin.config.options.model import ModelOptions
from pippin.core.decoding import convert, from_json
from pippin.core.errands import Conversion, Converted, ErrandFailed, Report, Verification
from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec
from pippin.engines.cpu.blas import accelerate_blas
from pippin.engines.file_limit import own_file_limit
from pippin.worker.forbidden import forbid_foreign_code

Asked = TypeVar("Asked", bound=Struct)
Tell = Callable[[Struct], None]


def convert_model(spec: WorkerSpec, asked: Conversion, tell: Tell) -> Converted:
    from pippin.engines.language.conversion import convert as conversion

    return conversion.convert(Path(spec.info.path or ""), asked, tell)


def verify_model(spec: WorkerSpec, asked: Verification, tell: Tell) -> Report:
    from pippin.engines.verify import run as verifying

    return verifying.verify(spec, asked, tell)


def run(kind: type[Asked], work: Callable[[WorkerSpec, Asked, Tell], Struct]) -> int:
    """Do the errand and return the exit status: 0 done, 1 refused with the reason written."""
    spec = from_json(sys.stdin.buffer.readline(), WorkerSpec)
    asked = from_json(sys.stdin.buffer.readline(), kind)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print progress
    forbid_foreign_code(spec)
    # A process that is terminated still removes what it wrote.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    def tell(told: Struct) -> None:
        answers.write(msgspec.json.encode(told) + b"\n")
        answers.flush()

    try:
        # The accelerated BLAS must be loaded before mlx, which the engine imports.
        accelerate_blas(convert(spec.options, ModelOptions), spec.threads)
        with own_file_limit():
            tell(work(spec, asked, tell))
    except ServerError as error:
        tell(ErrandFailed(error.report.message))
        return 1
    except KeyboardInterrupt:  # Ctrl-C reached the parent too, which reports it
        return 1
    return 0


if __name__ == "__main__":
    match sys.argv[1]:
        case "convert":
            sys.exit(run(Conversion, convert_model))
        case "verify":
            sys.exit(run(Verification, verify_model))
        case other:
            sys.exit(f"There is no errand {other!r}.")

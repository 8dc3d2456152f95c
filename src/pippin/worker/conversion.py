"""Converts one checkpoint in a process of its own: `python -m pippin.worker.conversion`.

Reads one line with the checkpoint's `WorkerSpec` and one with the `Conversion`, then writes the messages of `Told`, one
a line. As in every worker, the model's own code is not run.
"""

import os
import signal
import sys
from pathlib import Path

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.conversion import Conversion, ConversionFailed, Told
from pippin.core.decoding import convert, from_json
from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec
from pippin.engines.cpu.blas import accelerate_blas
from pippin.engines.file_limit import own_file_limit
from pippin.worker.foreign_code import forbid_foreign_code


def main() -> int:
    """Convert and return the exit status: 0 converted, 1 refused with the reason written."""
    spec = from_json(sys.stdin.buffer.readline(), WorkerSpec)
    asked = from_json(sys.stdin.buffer.readline(), Conversion)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print progress
    forbid_foreign_code(spec)
    # A process that is terminated still removes what it wrote.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    def tell(told: Told) -> None:
        answers.write(msgspec.json.encode(told) + b"\n")
        answers.flush()

    try:
        # The accelerated BLAS must be loaded before mlx, which the engine imports.
        accelerate_blas(convert(spec.options, ModelOptions), spec.threads)
        with own_file_limit():
            from pippin.engines.language.conversion import convert as conversion

            tell(conversion.convert(Path(spec.info.path or ""), asked, tell))
    except ServerError as error:
        tell(ConversionFailed(error.report.message))
        return 1
    except KeyboardInterrupt:  # Ctrl-C reached the parent too, which reports it
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Verifies a model in a process of its own: `python -m pippin.worker.verification`.

Such a process reads one line with the model's `WorkerSpec` and one with what is asked, then writes messages, one a
line. As in every worker, the model's own code is not run.
"""

import os
import sys

import msgspec
from msgspec import Struct

from pippin.config.options.model import ModelOptions
from pippin.core.decoding import convert, from_json
from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec
from pippin.core.verification import Verification, VerificationFailed
from pippin.engines.cpu.blas import accelerate_blas
from pippin.worker.forbidden import forbid_foreign_code, keep_file_limit


def run() -> int:
    """Verify, and return the exit status: 0 done, 1 refused with the reason written."""
    spec = from_json(sys.stdin.buffer.readline(), WorkerSpec)
    asked = from_json(sys.stdin.buffer.readline(), Verification)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print progress
    forbid_foreign_code(spec)

    def tell(told: Struct) -> None:
        answers.write(msgspec.json.encode(told) + b"\n")
        answers.flush()

    try:
        # The accelerated BLAS must be loaded before mlx, which the engine imports.
        accelerate_blas(convert(spec.options, ModelOptions), spec.threads)
        from pippin.engines.verify.run import verify

        keep_file_limit()
        tell(verify(spec, asked, tell))
    except ServerError as error:
        tell(VerificationFailed(error.report.message))
        return 1
    except KeyboardInterrupt:  # Ctrl-C reached the parent too, which reports it
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run())

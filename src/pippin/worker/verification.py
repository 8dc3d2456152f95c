"""Verifies one model in a process of its own: `python -m pippin.worker.verification` (see `errand.py`)."""

import sys

from pippin.core.errands import Report, Verification
from pippin.core.models import WorkerSpec
from pippin.worker.errand import Tell, run


def verify(spec: WorkerSpec, asked: Verification, tell: Tell) -> Report:
    from pippin.engines.verify import run as verifying

    return verifying.verify(spec, asked, tell)


if __name__ == "__main__":
    sys.exit(run(Verification, verify))

"""Converts one checkpoint in a process of its own: `python -m pippin.worker.conversion` (see `errand.py`)."""

import sys
from pathlib import Path

from pippin.core.errands import Conversion, Converted
from pippin.core.models import WorkerSpec
from pippin.worker.errand import Tell, run


def convert(spec: WorkerSpec, asked: Conversion, tell: Tell) -> Converted:
    from pippin.engines.language.conversion import convert as conversion

    return conversion.convert(Path(spec.info.path or ""), asked, tell)


if __name__ == "__main__":
    sys.exit(run(Conversion, convert))

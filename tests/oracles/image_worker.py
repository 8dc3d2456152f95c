"""A worker of Pippin whose image models are tiny, for an environment that has mflux.

    PYTHONPATH=src:. PYTHON tests/oracles/image_worker.py write FOLDER PRESET
    PYTHONPATH=src:. PYTHON tests/oracles/image_worker.py serve FD PARENT_PID

The first writes a model of random weights; the second does as `python -m pippin.worker` does.
"""

import runpy
import sys
from pathlib import Path

from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.blas import accelerate_blas

accelerate_blas(ModelOptions(), 1)

from pippin.worker.main import end_now  # noqa: E402
from tests.oracles import small_mflux  # noqa: E402

small_mflux.shrink()


def write(folder: Path, name: str) -> None:
    from pippin.engines.images.mflux_classes import CLASSES
    from pippin.engines.images.painting import mflux_named

    classes = CLASSES[name]
    config = getattr(mflux_named("common.config.model_config:ModelConfig"), classes.config)()
    small_mflux.write_model(folder, mflux_named(classes.model), config)


if __name__ == "__main__":
    task, first, second = sys.argv[1:]
    if task == "write":
        write(Path(first), second)
        end_now(0)  # as workers do: the libraries' threads sometimes abort the interpreter's own way out
    else:
        sys.argv[1:] = [first, second]
        runpy.run_module("pippin.worker", run_name="__main__")

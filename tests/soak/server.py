"""`pippin` for a soak: workers of image models run in an environment that has mflux, whose models they make tiny."""

import asyncio
import os
import sys
from pathlib import Path

from pippin.cli.main import main
from pippin.core.models import WorkerSpec
from pippin.runtime.workers.supervisor import WorkerProcess
from tests.soak.models import IMAGE_WORKER, IMAGES_PYTHON, ROOT

one_at_a_time = asyncio.Lock()
launch = WorkerProcess.launch.__func__


async def launch_where_mflux_is(kind: type[WorkerProcess], spec: WorkerSpec) -> WorkerProcess:
    """The launcher gets the arguments of the project's own Python."""
    async with one_at_a_time:  # a second launch must not see the first one's interpreter
        if spec.info.kind != "images":
            return await launch(kind, spec)
        own, sys.executable = sys.executable, str(launcher(Path.cwd()))
        try:
            return await launch(kind, spec)
        finally:
            sys.executable = own


def launcher(folder: Path) -> Path:
    path = folder / "images-python"
    if not path.exists():
        path.write_text(f'#!/bin/sh\nexec "{IMAGES_PYTHON}" "{ROOT / IMAGE_WORKER}" serve "$3" "$4"\n')
        path.chmod(0o755)
    return path


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(ROOT)
    WorkerProcess.launch = classmethod(launch_where_mflux_is)
    sys.exit(main())

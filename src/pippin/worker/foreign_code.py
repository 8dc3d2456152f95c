"""Prevents a model's own Python code from running, whatever a library decides.

Several loaders pass `trust_remote_code=True` to transformers on their own. The interpreter's audit hooks see every code
object just before it runs, and a hook cannot be removed once it is installed.
"""

import logging
import sys
from pathlib import Path
from typing import Any, Final

from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec

log = logging.getLogger(__name__)

DYNAMIC_MODULES: Final = "transformers_modules"
"""Transformers copies a model's code into a folder with this name before running it."""


def forbid_foreign_code(spec: WorkerSpec) -> None:
    """Forbid the model's code for the life of this process, unless the operator trusts the model."""
    if spec.options.get("trust_remote_code"):
        log.warning("%s may run Python code of its own: --trust-remote-code is on.", spec.info.id)
        return
    folder = None if spec.info.path is None else Path(spec.info.path)
    if folder is None or not folder.is_dir():
        return
    inside = tuple({f"{path}/" for path in (folder, folder.resolve())})

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "exec":
            return
        source: str = arguments[0].co_filename
        if DYNAMIC_MODULES in source or source.startswith(inside):
            raise ServerError(
                "load_failed",
                f"The model {spec.info.id!r} brings Python code, which is not run unless you start the server with "
                "--trust-remote-code. Do so only if you trust its author.",
            )

    sys.addaudithook(hook)

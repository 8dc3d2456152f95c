"""Keeps Python code that a model brings from being run, whatever a library on the way decides.

Several loaders pass `trust_remote_code=True` to transformers on their own. The interpreter's audit hooks see every
code object just before it is run, and a hook that is in place can't be taken away again.
"""

import logging
import sys
from pathlib import Path
from typing import Any, Final

from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec

log = logging.getLogger(__name__)

DYNAMIC_MODULES: Final = "transformers_modules"
"""Transformers copies a model's code into a folder of this name before it runs it."""


def forbid_foreign_code(spec: WorkerSpec) -> None:
    """Forbid code of the model for the life of this process, unless the operator trusts the model."""
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
